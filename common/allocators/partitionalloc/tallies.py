"""Count the spans of a partition by bucket, as PartitionAlloc's own statistics do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from findleaks.allocators.base import Cache
from findleaks.allocators.partitionalloc.spans import Span
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State, Totals
from findleaks.target.base import Range
from findleaks.value_classes import dataclass, field

DIRECT = "direct"  # the class of direct maps


@dataclass
class Tally:
    """The spans of one bucket. `allocated` counts slots that are not in free lists of spans.
    Of these slots, `quarantined` counts the slots that BackupRefPtr quarantines, and `delayed`
    counts the slots in the scheduler-loop quarantine."""

    slot_size: int = 0
    span_size: int = 0
    allocated: int = 0
    free: int = 0
    quarantined: int = 0
    delayed: int = 0
    active: int = 0
    full: int = 0
    empty: int = 0
    decommitted: int = 0
    parts: list[Range] = field(default_factory=list)  # spans with slots
    varies: bool = False  # whether a span has one slot of a known size

    def add(self, span: Span, freed: int, quarantined: int) -> None:
        """Count a span."""
        self.slot_size, self.span_size = span.slot_size, span.end - span.start
        if span.is_decommitted:
            self.decommitted += 1
            return
        self.parts.append(Range(span.start, span.end))
        self.allocated += span.allocated
        self.free += freed
        self.quarantined += quarantined
        self.varies |= bool(span.raw_size)
        if not span.allocated:
            self.empty += 1
        elif span.head or span.unprovisioned:
            self.active += 1
        else:
            self.full += 1

    def row(self, blocks: Blocks, arena: str, extras: int, parts: Sequence[Range]) -> Cache:
        """Return the row of this size class, whose blocks are in `parts`. The keys of the row's
        `own` are the names that Chromium's memory-infra uses."""
        own = {
            "slot_size": self.slot_size,
            "allocated_objects_count": self.allocated,
            "allocated_objects_size": self.allocated * self.slot_size,
            "total_slot_span_size": self.span_size,
            "active_slot_spans": self.active,
            "full_slot_spans": self.full,
            "empty_slot_spans": self.empty,
            "decommitted_slot_spans": self.decommitted,
            "brp_quarantined": self.quarantined,
            "scheduler_loop_quarantined": self.delayed,
        }
        memory = sum(end - start for start, end in self.parts)
        return count_row(blocks, arena, str(self.slot_size), 0 if self.varies else self.slot_size - extras, parts, memory, own)


def count_row(blocks: Blocks, arena: str, name: str, size: int, parts: Sequence[Range], memory: int, own: Mapping[str, int]) -> Cache:
    """Return the row of a size class whose blocks are in `parts`."""
    used, cached, free = (
        Totals.sum_of(blocks.totals(state, *part) for part in parts) for state in (State.IN_USE, State.CACHED, State.FREE)
    )
    counts = (used.blocks, cached.blocks, free.blocks, used.bytes, cached.bytes, free.bytes)
    return Cache(arena, name, size, *counts, memory, own=own)
