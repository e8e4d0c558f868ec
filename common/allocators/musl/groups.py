"""mallocng's groups, from its metas: which stand in memory of their own, which in a slot of another."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.musl.layout import AREA, CLASSES, HEADER, LARGE, UNIT, Meta
from findleaks.graph.base import Engine
from findleaks.target.base import Piece, Range, Region
from findleaks.target.ranges import merged

BATCH = 4096
"""Areas read at once: 16 MiB."""

DEEPEST = 16
"""Groups that stand inside each other: a group is at most half a slot less than the group around it, and of at most 2 KiB."""


class Group:
    """`free` counts its free slots, `nested` the numbers of those that hold groups; `memory` is what it takes, less what they do."""

    __slots__ = ("active", "avail", "count", "freeable", "freed", "label", "maplen", "mem", "memory", "meta", "nested", "number", "stride")

    def __init__(self, meta: int, mem: int, avail: int, freed: int, bits: int) -> None:
        self.meta = meta
        self.mem = mem
        self.avail = avail
        self.freed = freed
        self.count = (bits & 31) + 1
        self.freeable = bits >> 5 & 1
        self.number = bits >> 6 & 63
        self.maplen = bits >> 12
        self.nested: Sequence[int] = ()
        self.active = 0
        own = self.maplen and self.count == 1
        self.stride = self.maplen * AREA - UNIT if own else CLASSES[self.number] * UNIT if self.number < len(CLASSES) else 0
        self.label = "mmapped" if self.number == LARGE else "main" if self.freeable else "donated"
        self.memory = self.end - mem

    @property
    def storage(self) -> int:
        return self.mem + UNIT

    @property
    def end(self) -> int:
        """Of the memory that is its own: whole pages, or the last slot's end."""
        return self.mem + (self.maplen * AREA if self.maplen else UNIT + self.count * self.stride)

    @property
    def usable(self) -> int:
        """Of a slot."""
        return self.stride - HEADER

    @property
    def mask(self) -> int:
        """A bit for each slot that is free."""
        return (self.avail | self.freed) & (2 << (self.count - 1)) - 1

    @property
    def free(self) -> int:
        return bin(self.mask).count("1")

    def slot(self, number: int) -> int:
        return self.mem + UNIT + number * self.stride


class Segment(NamedTuple):
    """Slots [first, last) of a group, which no other group stands in or between."""

    start: int
    group: Group
    first: int
    last: int


class Groups:
    """`all` by address, outer before inner; `segments` cover their slots, ascending."""

    def __init__(self, groups: list[Group], outer: dict[int, Optional[Group]]) -> None:
        self.all = groups
        self._outer = outer  # by the address of a group: the one it stands in
        self._starts = [group.mem for group in groups]
        segments: list[Segment] = []
        for group in groups:
            first = 0
            for number in (*group.nested, group.count):
                if number > first:
                    segments.append(Segment(group.slot(first), group, first, number))
                first = number + 1
        segments.sort(key=lambda segment: segment.start)
        self.segments = segments

    def tops(self) -> Iterator[tuple[str, int, int]]:
        """(label, start, end) of what stands in no other group, those side by side as one."""
        label, start, end = "", 0, 0
        for group in self.all:
            if self._outer[group.mem] is not None:
                continue
            if (group.label, group.mem) != (label, end):
                if end:
                    yield label, start, end
                label, start = group.label, group.mem
            end = group.end
        if end:
            yield label, start, end

    def innermost(self, address: int) -> Optional[Group]:
        """The group around an address."""
        at = bisect_right(self._starts, address) - 1
        group: Optional[Group] = self.all[at] if at >= 0 else None
        while group is not None and address >= group.end:
            group = self._outer[group.mem]
        return group


def read_groups(memory: Memory, engine: Engine, areas: Sequence[int], meta: Meta, problems: list[Problem]) -> Groups:
    """Every group that a meta of these areas describes, and that can be where it says."""
    found: list[Group] = []
    areas = sorted(areas)
    for at in range(0, len(areas), BATCH):
        found += _of_areas(memory, engine, areas[at : at + BATCH], meta, problems)
    found.sort(key=lambda group: (group.mem, -group.end))
    _check_headers(memory, engine, found, problems)
    return _nest(memory, found, problems)


def _of_areas(memory: Memory, engine: Engine, areas: Sequence[int], meta: Meta, problems: list[Problem]) -> list[Group]:
    pieces = _pieces(memory, [(area, area + AREA) for area in areas])
    data, missing = engine.gather(pieces, areas, AREA)
    for number in missing:
        problems.append(Problem(areas[number], f"meta_area {areas[number]:#x} cannot be read: its groups are not seen", False))
    view = memoryview(data).cast("Q" if memory.size == 8 else "I")
    found: list[Group] = []
    per_area, step, first = AREA // memory.size, meta.size // memory.size, meta.first // memory.size
    last = first + meta.count * step
    for number, area in enumerate(areas):
        words = view[number * per_area : (number + 1) * per_area]
        at = area + meta.first
        if memory.size == 8:
            for mem, masks, bits in zip(words[first + 2 : last : 5], words[first + 3 : last : 5], words[first + 4 : last : 5]):
                if mem:
                    _add(memory, found, problems, at, mem, masks & 0xFFFFFFFF, masks >> 32, bits)
                at += meta.size
        else:
            columns = [words[first + column : last : 6] for column in (2, 3, 4, 5)]
            for mem, avail, freed, bits in zip(*columns):
                if mem:
                    _add(memory, found, problems, at, mem, avail, freed, bits)
                at += meta.size
    return found


def _add(memory: Memory, found: list[Group], problems: list[Problem], at: int, mem: int, avail: int, freed: int, bits: int) -> None:
    """Take a meta as a group, unless it cannot be one."""
    group = Group(at, mem, avail, freed, bits)
    good = mem % UNIT == 0 and 0 < group.end < memory.arch.mask
    if group.number == LARGE:
        good = good and group.count == 1 and group.maplen > 0
    else:
        good = good and group.number < len(CLASSES) and UNIT + group.count * group.stride <= group.end - mem
    if good:
        found.append(group)
    else:
        what = f"meta {at:#x} is corrupt (mem {mem:#x}, size class {group.number}, last_idx {group.count - 1}, maplen {group.maplen})"
        problems.append(Problem(at, f"{what}: the blocks of its group are not seen"))


def _check_headers(memory: Memory, engine: Engine, groups: Sequence[Group], problems: list[Problem]) -> None:
    """Each group begins with the address of its meta. The meta is trusted where it does not: guard pages shield it."""
    for at in range(0, len(groups), BATCH):
        batch = groups[at : at + BATCH]
        starts = array("Q", [group.mem for group in batch])
        pieces = _pieces(memory, [(start & -AREA, (start & -AREA) + AREA) for start in starts])
        data, missing = engine.gather(pieces, starts, UNIT)
        view = memoryview(data).cast("Q" if memory.size == 8 else "I")
        step = UNIT // memory.size
        absent = set(missing)
        for number, (group, back, active) in enumerate(zip(batch, view[::step], view[1::step])):
            group.active = active & 31
            if back != group.meta and number not in absent:
                what = f"the group at {group.mem:#x} has {back:#x} for its meta, not {group.meta:#x}: its header was overwritten"
                problems.append(Problem(group.mem, what))


def _pieces(memory: Memory, ranges: Sequence[tuple[int, int]]) -> tuple[Piece, ...]:
    return tuple(piece for start, end in merged(Range(*one) for one in ranges) for piece in memory.target.pieces(start, end))


def _nest(memory: Memory, groups: Sequence[Group], problems: list[Problem]) -> Groups:
    """Put each group where it stands; those that can stand nowhere are left out and named."""
    regions = [region for region in memory.target.regions() if region.writable]
    starts = [region.start for region in regions]
    kept: list[Group] = []
    outer: dict[int, Optional[Group]] = {}
    nested: dict[int, list[int]] = {}
    open_: list[Group] = []
    for group in groups:
        while open_ and open_[-1].end <= group.mem:
            open_.pop()
        around = open_[-1] if open_ else None
        why = _misplaced(group, around, regions, starts)
        if why:
            problems.append(Problem(group.meta, f"the group at {group.mem:#x} (meta {group.meta:#x}) {why}: its blocks are not seen"))
            continue
        if around is not None:
            nested.setdefault(around.mem, []).append((group.mem - around.storage) // around.stride)
            around.memory -= around.stride
            group.memory = around.stride
        outer[group.mem] = around
        kept.append(group)
        open_.append(group)
    for group in kept:
        group.nested = nested.get(group.mem, ())
    return Groups(kept, outer)


def _misplaced(group: Group, around: Optional[Group], regions: Sequence[Region], starts: Sequence[int]) -> str:
    """What is wrong with a group's place, or ""."""
    if around is None:
        if not group.maplen and group.freeable:
            return "stands in no slot of another group"
        at = bisect_right(starts, group.mem) - 1
        reach = group.mem
        while 0 <= at < len(regions) and regions[at].start <= reach < group.end:
            reach = regions[at].end
            at += 1
        return "" if reach >= group.end else "is not in writable memory"
    if group.maplen or not group.freeable:
        return f"overlaps the group at {around.mem:#x}"
    number, offset = divmod(group.mem - around.storage, around.stride)
    if not 0 <= number < around.count or offset or group.end > around.slot(number + 1):
        return f"fits no slot of the group around it at {around.mem:#x}"
    if around.mask >> number & 1:
        return f"stands in a free slot of the group at {around.mem:#x}"
    return ""
