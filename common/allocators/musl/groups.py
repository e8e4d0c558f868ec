"""mallocng's groups, as described by its metas, and how they are nested: a slot may contain a
group."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.musl import engine as slots
from findleaks.allocators.musl.engine import GROUP, HEADER, LABELS, SUMS, UNIT, WRONG, SlotGroups
from findleaks.allocators.musl.layout import AREA, CLASSES
from findleaks.engine.contract import Engine
from findleaks.target.base import Piece, Range
from findleaks.target.ranges import merge_ranges


class Group:
    """One group. `free` counts its free slots. `nested` are the numbers of the slots that contain
    groups. `outer` is the index of the group that contains it, or -1."""

    __slots__ = ("active", "avail", "count", "end", "freed", "mem", "meta", "nested", "number", "outer", "stride")

    def __init__(self, record: Sequence[int]) -> None:
        self.mem, self.meta, masks, bits, self.stride, self.end, outer, nested = record
        self.avail, self.freed = masks & 0xFFFFFFFF, masks >> 32
        self.count = (bits & 31) + 1
        self.number = bits >> 6 & 63
        self.outer = outer - 1
        self.nested = tuple(number for number in range(32) if nested >> number & 1) if nested else ()
        self.active = 0

    @property
    def storage(self) -> int:
        return self.mem + UNIT

    @property
    def usable(self) -> int:
        return self.stride - HEADER

    @property
    def mask(self) -> int:
        """A bit for each free slot."""
        return (self.avail | self.freed) & (2 << (self.count - 1)) - 1

    def slot(self, number: int) -> int:
        return self.mem + UNIT + number * self.stride


class Segment(NamedTuple):
    """Slots [first, last) of a group, with no nested group in them or between them."""

    start: int
    group: Group
    first: int
    last: int


class Batch(NamedTuple):
    """Adjacent groups [first, last) in [start, end), which are read at once."""

    label: str
    start: int
    end: int
    first: int
    last: int
    slots: int
    lone: int  # 1 if the slots of the groups are large


class Sums(NamedTuple):
    """Totals of a size class; see engine.SUMS."""

    groups: int
    slots: int
    free: int
    nested: int
    memory: int
    free_bytes: int
    used: int


class Groups:
    """All groups. A large heap has hundreds of thousands of groups, so objects are created only on
    request."""

    def __init__(self, memory: Memory, engine: Engine, table: SlotGroups) -> None:
        self._memory = memory
        self._engine = engine
        self.table = table
        rows = zip(*(table.batches[column :: slots.BATCH] for column in range(slots.BATCH)))
        self.batches = [Batch(LABELS[label], *others) for label, *others in rows]

    def __len__(self) -> int:
        return len(self.table.records) // GROUP

    def one(self, index: int) -> Group:
        """Return the group with this index."""
        return Group(self.table.records[index * GROUP : (index + 1) * GROUP])

    @cached_property
    def all(self) -> list[Group]:
        """All groups by address. A group precedes the groups inside it."""
        found = [self.one(index) for index in range(len(self))]
        places = array("Q", [group.mem + self._memory.size for group in found])
        ranges = merge_ranges(Range(place & -AREA, (place & -AREA) + AREA) for place in places)
        actives, _ = self._engine.gather(pieces(self._memory, ranges), places, 1)
        little = self._memory.arch.byteorder == "little"
        for group, active in zip(found, actives):
            group.active = active & 31 if little else active >> 3
        return found

    @cached_property
    def segments(self) -> list[Segment]:
        """Segments that together cover all slots, ascending."""
        found: list[Segment] = []
        for group in self.all:
            first = 0
            for number in (*group.nested, group.count):
                if number > first:
                    found.append(Segment(group.slot(first), group, first, number))
                first = number + 1
        found.sort(key=lambda segment: segment.start)
        return found

    def segments_of(self, batch: Batch) -> list[Segment]:
        """Return the segments of a batch."""
        return self.segments[bisect_left(self.segments, (batch.start,)) : bisect_left(self.segments, (batch.end,))]

    def sums(self) -> Iterator[tuple[str, int, Sums]]:
        """Yield (label, size class, sums) for each label and class that has groups."""
        sums = self.table.sums
        for place in range(0, len(sums), SUMS):
            if sums[place]:
                label, number = divmod(place // SUMS, slots.CLASSES)
                yield LABELS[label], number, Sums(*sums[place : place + SUMS])

    def tops(self) -> Iterator[list[Batch]]:
        """Yield runs of adjacent batches."""
        run: list[Batch] = []
        for batch in self.batches:
            if run and (batch.label, batch.start) != (run[-1].label, run[-1].end):
                yield run
                run = []
            run.append(batch)
        if run:
            yield run

    @cached_property
    def _starts(self) -> array[int]:
        return self.table.records[::GROUP]

    def innermost(self, address: int) -> Optional[Group]:
        """Return the innermost group that contains `address`, or None."""
        at = bisect_right(self._starts, address) - 1
        group = self.one(at) if at >= 0 else None
        while group is not None and address >= group.end:
            group = self.one(group.outer) if group.outer >= 0 else None
        return group


def pieces(memory: Memory, ranges: Sequence[Range]) -> tuple[Piece, ...]:
    """Return the memory of these ranges."""
    return tuple(piece for start, end in ranges for piece in memory.target.pieces(start, end))


def read_groups(memory: Memory, engine: Engine, areas: Sequence[int], problems: list[Problem]) -> Groups:
    """Read every group that a meta in these areas describes and whose position is possible."""
    areas = sorted(areas)
    regions = merge_ranges(Range(region.start, region.end) for region in memory.target.regions() if region.writable)
    table = slots.read_groups(engine, pieces(memory, merge_ranges(Range(area, area + AREA) for area in areas)), areas, CLASSES, regions)
    for code, meta, mem, more in zip(*(table.wrong[column::WRONG] for column in range(WRONG))):
        problems.append(_problem(code, meta, mem, more))
    return Groups(memory, engine, table)


def _problem(code: int, meta: int, mem: int, more: int) -> Problem:
    """Make the problem of a rejected group."""
    if code == slots.MISSING:
        return Problem(meta, f"meta_area {meta:#x} cannot be read: its groups are not read", False)
    if code == slots.CORRUPT:
        what = f"mem {mem:#x}, size class {more >> 6 & 63}, last_idx {more & 31}, maplen {more >> 12}"
        return Problem(meta, f"meta {meta:#x} is corrupt ({what}): the blocks of its group are not read")
    why = {
        slots.NO_SLOT: "is in no slot of another group",
        slots.NO_REGION: "is not in writable memory",
        slots.OVERLAPS: f"overlaps the group at {more:#x}",
        slots.MISFIT: f"fits no slot of the group around it at {more:#x}",
        slots.IN_FREE: f"is in a free slot of the group at {more:#x}",
    }
    return Problem(meta, f"the group at {mem:#x} (meta {meta:#x}) {why[code]}: its blocks are not read")
