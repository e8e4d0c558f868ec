"""Answer the question "what grew?" from snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional, Union

from findleaks.history import figure_series, growth, survivors
from findleaks.history.snapshot import Snapshot, differences
from findleaks.results.growth import (
    Cohort,
    EstimatedAmount,
    Grown,
    GrownObjects,
    Growth,
    Interval,
    Rate,
    Sample,
    Series,
    Stayed,
    StayedOfSize,
    Survivors,
)


def compare_snapshots(snapshots: Sequence[Snapshot]) -> Growth:
    """Return what grew from the first of two or more snapshots to the last."""
    found = growth.Growth(snapshots)
    return growth_result(found, found.rows)


def growth_result(found: growth.Growth, rows: Sequence[growth.Grown], limit: Optional[int] = None) -> Growth:
    """Return the result of a comparison with these rows, of which `limit` are included (0, None:
    all)."""
    first, last = (leaked_amount(found.snapshots[at]) for at in (0, -1))
    survived, why = survivors_result(found.survival, limit)
    return Growth(
        samples=[_sample(one) for one in found.snapshots],
        seconds=found.times[-1] - found.times[0] if found.times else None,
        several_processes=found.several or None,
        differences=list(differences(found.snapshots)),
        total=_make_grown(found.total),
        grown=[_make_grown(row) for row in rows[: limit or None]],
        survivors=survived,
        survivors_unknown=why,
        objects=[GrownObjects(name, [_series(one) for one in types]) for name, types in found.objects()],
        leaked_blocks=last[0] - first[0],
        leaked_bytes=last[1] - first[1],
    )


def leaked_amount(snapshot: Snapshot) -> tuple[int, int]:
    """Return the number and the bytes of blocks that are definitely or indirectly lost, without
    garbage that a collector will free. They are 0 if the snapshot lacks the result of `find`."""
    found = [one for one in snapshot.figures if one.section == "kind" and one.name in ("definite", "indirect")]
    blocks, size = sum(one.number or 0 for one in found), sum(one.bytes or 0 for one in found)
    counts = (snapshot.answers.get("find") or {}).get("reference_counts") or {}
    garbage = counts.get("uncollected") or {}
    return max(0, blocks - int(garbage.get("blocks", 0))), max(0, size - int(garbage.get("bytes", 0)))


def _sample(one: Snapshot) -> Sample:
    total, identity = one.total(), one.identity
    return Sample(
        one.name,
        one.clock.time,
        one.clock.uptime,
        identity.program,
        identity.build_id,
        identity.pid,
        resident=total.bytes if total.name == "resident" else None,
        mapped=total.bytes if total.name == "mapped" else None,
    )


def _series(one: figure_series.Series) -> Series:
    section, within, name = one.key
    before, after = one.compared[0], one.compared[-1]
    return Series(
        section,
        within or None,
        name,
        one.note or None,
        unit="bytes" if one.in_bytes else "count",
        before=before,
        after=after,
        delta=one.delta if None not in (before, after) else None,
        counts=tuple(one.counts) if any(value is not None for value in one.counts) else None,
        bytes=tuple(one.bytes) if one.in_bytes else None,
    )


def _make_grown(row: growth.Grown) -> Grown:
    hour = row.per_hour
    rate = None if hour is None else Rate(hour.slope, hour.low, hour.high)
    return Grown(**vars(_series(row.series)), trend=row.trend.value, per_hour=rate, inside=[_series(one) for one in row.inside])


def survivors_result(found: Union[survivors.Survival, str], limit: Optional[int]) -> tuple[Optional[Survivors], Optional[str]]:
    """Return the blocks that were not freed, or the reason why they are unknown. `limit`: number of
    sizes (0, None: all)."""
    if isinstance(found, str):
        return None, found
    total = _make_stayed(found.total)
    sizes = [(one.size or 0, _make_stayed(one)) for one in found.sizes[: limit or None]]
    by_size = [StayedOfSize(size, one.first, one.since, one.newest) for size, one in sizes]
    return Survivors(found.level > 0, total.first, total.since, total.newest, by_size), None


def _make_stayed(one: survivors.Survivors) -> Stayed:
    return Stayed(_cohort(one.first), _cohort(one.since) if one.since else None, _amount(one.newest))


def _cohort(one: survivors.Cohort) -> Cohort:
    part = one.part
    interval = Interval(round(part.value, 4), round(part.low, 4), round(part.high, 4)) if part else None
    return Cohort(_amount(one.made), _amount(one.stayed), interval)


def _amount(one: survivors.Amount) -> EstimatedAmount:
    """Return an amount in whole numbers. If it is an estimate, it has 95 % intervals."""
    estimated = one.blocks.low < one.blocks.high
    return EstimatedAmount(
        round(one.blocks.value),
        round(one.bytes.value),
        (round(one.blocks.low), round(one.blocks.high)) if estimated else None,
        (round(one.bytes.low), round(one.bytes.high)) if estimated else None,
    )
