"""What grew between snapshots: each figure as a series, and the rows that explain the growth.

Figures are matched by section, the whole they are a part of, and name. A figure that a snapshot
lacks is 0 in it, if the snapshot has the section at all. The rows that are ranked do not overlap:

  - lost groups,
  - what each root holds: as the root, or as the part of it (a field, a container, V8's handles, a
    runtime's type) that explains most of its growth,
  - shares of the resident memory that are not blocks in use.

So they add up to what the process grew by, if all blocks are resident.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Optional, Union

from findleaks.history.snapshot import Snapshot, seconds
from findleaks.history.survivors import Survival, survival
from findleaks.history.trend import MIN_POINTS, Rate, Trend, rate, trend

MIN_BYTES, MIN_PART = 64 << 10, 0.01
"""A figure has changed if by more than MIN_BYTES, and by MIN_PART of what there was."""
MIN_COUNT = 16
"""The same for figures without bytes: handles, threads."""
EXPLAINS = 0.8
"""Part of a root's growth from which on one of its parts is named in its stead."""
HOUR = 3600.0
SMALL_GROUPS = "other groups"
"""Name of the row for lost groups that each changed by less than MIN_BYTES."""

RANKED = frozenset({"lost", "root", "field", "container", "handles", "native", "runtime type", "share", "threads", "total"})
"""Sections that the rows are chosen from."""

Key = tuple[str, str, str]
"""Section, within, name."""


class Series(NamedTuple):
    """One figure in every snapshot: its counts and its bytes (None where a snapshot lacks them).
    `note` is of the last snapshot that has the figure."""

    key: Key
    counts: Sequence[Optional[int]]
    bytes: Sequence[Optional[int]]
    note: str

    @property
    def in_bytes(self) -> bool:
        """Whether bytes are compared; else its counts, as it has no bytes."""
        return any(value is not None for value in self.bytes)

    @property
    def values(self) -> list[int]:
        return [value or 0 for value in (self.bytes if self.in_bytes else self.counts)]

    @property
    def delta(self) -> int:
        first, last = (self.bytes[0], self.bytes[-1]) if self.in_bytes else (self.counts[0], self.counts[-1])
        return (last or 0) - (first or 0)


@dataclass(frozen=True)
class Grown:
    """A series with its trend, and its rate an hour if the times are known. `inside`: parts of it
    that grew with it, the innermost last."""

    series: Series
    trend: Trend
    per_hour: Optional[Rate]
    inside: tuple[Series, ...] = ()


def all_series(snapshots: Sequence[Snapshot], sections: Optional[frozenset[str]] = None) -> dict[Key, Series]:
    """The figures of all snapshots by key; only those of some sections if given."""
    there = [{figure.section for figure in one.figures} for one in snapshots]
    blank: dict[str, tuple[Optional[int], ...]] = {
        section: tuple(0 if section in one else None for one in there) for section in set().union(*there)
    }
    unknown: tuple[Optional[int], ...] = (None,) * len(snapshots)
    counts: dict[Key, list[Optional[int]]] = {}
    sizes: dict[Key, list[Optional[int]]] = {}
    notes: dict[Key, str] = {}
    for at, one in enumerate(snapshots):
        for section, name, count, size, within, note in one.figures:
            if sections is not None and section not in sections:
                continue
            key = section, within, name
            if count is not None:
                row = counts.get(key)
                if row is None:
                    row = counts[key] = list(blank[section])
                row[at] = count
            if size is not None:
                row = sizes.get(key)
                if row is None:
                    row = sizes[key] = list(blank[section])
                row[at] = size
            notes[key] = note
    return {key: Series(key, counts.get(key, unknown), sizes.get(key, unknown), note) for key, note in notes.items()}


def _sum(key: Key, parts: Sequence[Series]) -> Series:
    """One series of several, which have counts and bytes."""
    counts = [sum(value or 0 for value in column) for column in zip(*(one.counts for one in parts))]
    return Series(key, counts, [sum(value or 0 for value in column) for column in zip(*(one.bytes for one in parts))], "")


class Growth:
    """What grew from the first of two or more snapshots to the last. `rows`: see the module; those
    that grew most first, those that shrank last. `total`: resident bytes."""

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        self.snapshots = snapshots
        self.times = seconds(snapshots)
        self.series = all_series(snapshots, RANKED)
        totals = [one.total() for one in snapshots]
        note = totals[-1].name
        self.total = self.judged(Series(("total", "", note), [None] * len(totals), [total.bytes for total in totals], ""))
        rows = [*self._lost(), *self._held(), *self._shares()]
        self.rows = sorted(rows, key=lambda row: -row.series.delta)

    @cached_property
    def survival(self) -> Union[Survival, str]:
        """Which blocks stayed, or why that is not known."""
        return survival(self.snapshots)

    def judged(self, series: Series, inside: Iterable[Series] = ()) -> Grown:
        """A series with its trend and rate."""
        values, in_bytes = series.values, series.in_bytes
        least = max(MIN_BYTES, MIN_PART * values[0]) if in_bytes else MIN_COUNT
        if len(values) < MIN_POINTS:
            kind = Trend.TWO_POINTS if abs(values[-1] - values[0]) > least else Trend.FLAT
        else:
            kind = trend(values, least)
        slope = None
        if self.times is not None and kind is not Trend.FLAT:
            slope = rate(self.times, values)
        return Grown(series, kind, slope and Rate(*(value * HOUR for value in slope)), tuple(inside))

    def _lost(self) -> Iterator[Grown]:
        """What is lost for sure; what is possibly lost is counted with its roots. Groups that have
        hardly changed are one row, as a leak of many sizes is many groups."""
        lost = [one for key, one in self.series.items() if key[0] == "lost" and key[1] == "definite"]
        small = [one for one in lost if abs(one.delta) <= MIN_BYTES]
        yield from (self.judged(one) for one in lost if abs(one.delta) > MIN_BYTES)
        if small:
            yield self.judged(_sum(("lost", "definite", SMALL_GROUPS), small))

    def _shares(self) -> Iterator[Grown]:
        """The shares of resident memory but for blocks in use, which `_lost` and `_held` divide."""
        objects = self._parts_of_runtimes("runtime type")
        for key, one in self.series.items():
            if key[0] == "share" and not key[2].endswith(": in-use"):
                if key[2] == "stacks":
                    yield self.judged(one, self._threads())
                else:
                    yield self.judged(one, self._explaining(one, objects.get(key[2].partition(" ")[0], ())))

    def _threads(self) -> list[Series]:
        """The stack that most of the new threads have."""
        stacks = [one for key, one in self.series.items() if key[0] == "threads" and one.delta >= MIN_COUNT]
        return sorted(stacks, key=lambda one: one.delta)[-1:]

    def _held(self) -> Iterator[Grown]:
        """Each root, with the parts that explain its growth."""
        parts: dict[str, list[Series]] = {}
        for key, one in self.series.items():
            if key[0] in ("field", "container"):
                parts.setdefault(key[1], []).append(one)
        native, handles = self._parts_of_runtimes("native"), [one for key, one in self.series.items() if key[0] == "handles"]
        for key, root in self.series.items():
            if key[0] == "root":
                runtime = key[2].partition("'s ")[0].rpartition(" ")[2]
                inside = [*parts.get(key[2], ()), *native.get(runtime, ()), *handles]
                yield self.judged(root, self._explaining(root, inside))

    def _parts_of_runtimes(self, section: str) -> Mapping[str, list[Series]]:
        found: dict[str, list[Series]] = {}
        for key, one in self.series.items():
            if key[0] == section:
                found.setdefault(key[1], []).append(one)
        return found

    def _explaining(self, whole: Series, parts: Iterable[Series]) -> Iterator[Series]:
        """The parts that explain the growth of the whole, in their order: outer ones first."""
        if whole.delta > MIN_BYTES:
            yield from (one for one in parts if EXPLAINS * whole.delta <= one.delta <= whole.delta / EXPLAINS)
