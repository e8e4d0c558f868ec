"""Convert what was recorded of allocations to a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from findleaks.answers.sites import native_frame
from findleaks.results.amounts import Amount
from findleaks.results.track import Fates, Tracked, TrackedEntry, TrackedHolder, TrackedStack, UnseenReason
from findleaks.tracking.merging import MergedStack
from findleaks.tracking.sites import Recorded, Tally, TrackedSite
from findleaks.tracking.tracker import Recording

FATES = ("allocated", "freed", "held", "possible", "lost")
EXAMPLES = 3  # lost blocks whose addresses are listed


class FoundSites(NamedTuple):
    """Stacks, and the entries into which they are merged. `reasons`: why there are no stacks."""

    sites: Sequence[TrackedSite]
    entries: Sequence[MergedStack]
    reasons: Sequence[UnseenReason]


def tracked_blocks(
    found: FoundSites, recorded: Recorded, span: Recording, pid: int, limit: Optional[int] = None, mappings: bool = False
) -> Tracked:
    """Return the result, with `limit` entries and stacks (0, None: all)."""
    numbers = {id(site): number for number, entry in enumerate(found.entries, 1) for site in entry.sites}
    most = limit or None
    return Tracked(
        pid,
        round(span.seconds, 3),
        span.outcome.why,
        recorded=sum(site.records for site in found.sites),
        not_recorded=recorded.missed,
        estimated=any(record.mean for record in recorded.records),
        totals=Fates(*(_amount([_tally(site, fate) for site in found.sites]) for fate in FATES)),
        entries=[_entry(entry) for entry in found.entries[:most]],
        stacks=[_stack(site, numbers[id(site)]) for site in found.sites[:most]],
        reasons=found.reasons,
        what="mappings" if mappings else "blocks",
    )


def _entry(entry: MergedStack) -> TrackedEntry:
    """Return the sums of an entry. `function` is the one that allocates, and `frames` are those
    that all of its stacks have in common."""
    return TrackedEntry(
        **_fates(entry.total),
        function=entry.key.function or None if entry.key is not None else None,
        module=entry.key.module or None if entry.key is not None else None,
        stacks=len(entry.sites),
        frames=[native_frame(frame) for frame in entry.frames],
    )


def _stack(site: TrackedSite, entry: int) -> TrackedStack:
    return TrackedStack(
        **_fates(site),
        entry=entry,
        frames=[native_frame(frame) for frame in site.frames],
        complete=not site.end,
        incomplete=site.end or None,
        holders=[TrackedHolder(label, count) for label, count in site.holders],
        examples=site.examples[:EXAMPLES],
    )


def _fates(site: TrackedSite) -> dict[str, Any]:
    return {fate: _amount([_tally(site, fate)]) for fate in FATES}


def _tally(site: TrackedSite, fate: str) -> Tally:
    found: Tally = getattr(site, fate)
    return found


def _amount(tallies: Sequence[Tally]) -> Amount:
    return Amount(round(sum(one.blocks for one in tallies)), round(sum(one.bytes for one in tallies)))
