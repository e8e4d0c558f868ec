"""The blocks in mallocng's slots: where each begins, and how many bytes were asked for.

A slot's four bytes in front of its user memory are p[-4], 0 unless the offset has 32 bits; index in 5 bits and reserve in 3; and the
offset from the group's storage in units. Reserve is how many bytes at the end of the slot were not asked for; 5 says that these are
counted in the slot's last four bytes. A block may begin further on in its slot (cycled, or aligned): the slot's start then says how far.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.musl.groups import Group, Segment
from findleaks.allocators.musl.layout import AREA, CLASSES, HEADER, MOVED, UNIT
from findleaks.graph.base import Blocks, Engine, State
from findleaks.target.base import Piece, Range, Target
from findleaks.target.ranges import merged

SPAN = 16 << 20
"""Bytes of groups that are read at once."""

LONE = 1 << 16
"""Slots of groups larger than this are read one by one, not whole."""

_BITS = tuple(bytes(State.FREE if byte >> bit & 1 else State.IN_USE for bit in range(8)) for byte in range(256))
_EXPECTED = tuple(array("I", [number << 8 | (number * units & 0xFFFF) << 16 for number in range(32)]) for units in CLASSES)
_MASK = 0xFFFF1FFF  # all of the header but the reserve


_MOST_SAID = 10_000


class Read(NamedTuple):
    """Slots in ascending order: where each begins, its stride and header; where its block begins, of which size and state."""

    slots: array[int]
    strides: array[int]
    headers: memoryview
    starts: array[int]
    sizes: array[int]
    states: bytearray
    pieces: tuple[Piece, ...]


class Slots:
    """Walks segments; `used` sums the bytes in use by (class, label)."""

    def __init__(self, target: Target, engine: Engine, problems: list[Problem]) -> None:
        self.memory = Memory(target)
        self.engine = engine
        self.problems = problems
        self.used: dict[tuple[int, str], int] = {}
        self._said: set[int] = set()

    def walk(self, segments: Sequence[Segment], blocks: Blocks) -> None:
        """Append the blocks of these segments."""
        for batch in batches(segments):
            read = self.read(batch)
            self._count(batch, read)
            blocks.append(read.starts, read.sizes, read.states)

    def pieces(self, batch: Sequence[Segment]) -> tuple[Piece, ...]:
        ranges = []
        for start, group, first, last in batch:
            end = group.slot(last)
            if end - start <= LONE:
                ranges.append(Range((start - HEADER) & -AREA, -(-end // AREA) * AREA))  # whole pages, so that neighbours are one piece
            else:
                for number in range(first, last):
                    at = group.slot(number)
                    ranges += [Range(at - HEADER, at + UNIT), Range(at + group.stride - 2 * HEADER, at + group.stride)]
        return tuple(piece for start, end in merged(ranges) for piece in self.memory.target.pieces(start, end))

    def read(self, batch: Sequence[Segment]) -> Read:
        """The slots of a batch, and what is in them."""
        starts, strides, expected, states = array("Q"), array("Q"), array("I"), bytearray()
        for start, group, first, last in batch:
            count, mask, stride = last - first, group.mask, group.stride
            if count == 1:
                starts.append(start)
                strides.append(stride)
                expected.append(first << 8 | (first * (stride // UNIT) & 0xFFFF) << 16)
                states.append(State.FREE if mask >> first & 1 else State.IN_USE)
            else:
                starts.extend(range(start, start + count * stride, stride))
                strides.extend([stride] * count)
                expected += _EXPECTED[group.number][first:last]
                bits = _BITS[mask & 255] + _BITS[mask >> 8 & 255] + _BITS[mask >> 16 & 255] + _BITS[mask >> 24]
                states += bits[first:last]
        pieces = self.pieces(batch)
        heads, lost = self.engine.gather(pieces, array("Q", [start - HEADER for start in starts]), HEADER)
        ends = array("Q", [start + stride - 2 * HEADER for start, stride in zip(starts, strides)])
        tails, _ = self.engine.gather(pieces, ends, HEADER)
        sizes = array("Q", [stride - HEADER for stride in strides])
        slots = array("Q", starts)
        odd: list[int] = []
        free = int(State.FREE)
        headers = memoryview(heads).cast("I")
        for number, (state, head, right, reserved) in enumerate(zip(states, headers, expected, memoryview(tails).cast("I"))):
            if state == free:
                continue
            few = head >> 13 & 7
            if head & _MASK == right and few < 5:
                sizes[number] -= few
            elif head & _MASK == right and few == 5 and 5 <= reserved <= sizes[number]:
                sizes[number] -= reserved
            else:
                odd.append(number)
        absent = set(lost)
        for number in odd:
            start = starts[number]
            if number in absent:
                self._say(Problem(start, f"the slot at {start:#x} cannot be read: its size is not known", False))
            else:
                group = batch[_segment_of(batch, start)].group
                starts[number], sizes[number], states[number] = self._odd(group, start, sizes[number])
        return Read(slots, strides, headers, starts, sizes, states, pieces)

    def _say(self, problem: Problem) -> None:
        """Each problem once, however often the slots are read; the first thousands of them."""
        if problem.address not in self._said and len(self._said) < _MOST_SAID:
            self._said.add(problem.address)
            self.problems.append(problem)

    def _odd(self, group: Group, start: int, size: int) -> tuple[int, int, int]:
        """Start, size and state of a block that does not begin where its slot does, or whose header makes no sense."""
        number = (start - group.storage) // group.stride
        end = start + size
        head = self.memory.int32(start - HEADER) or 0
        if head >> 8 & 0xFF == MOVED:
            for block in self._moved(group, start, end, head >> 16):
                reserve = self._reserve(block, end, number, (block - group.storage) // UNIT)
                if reserve >= 0:
                    return block, end - block - reserve, State.IN_USE
            what = f"the block that the slot at {start:#x} holds is not where its header says: overwritten"
        elif head & _MASK == number << 8 | ((start - group.storage) // UNIT & 0xFFFF) << 16 and head >> 13 & 7 == 5:
            what = f"the block {start:#x} was overrun: what counts its size, at the end of its slot, cannot be"
            self._say(Problem(start, f"{what}; free() of it would crash", True, Range(end - HEADER, end)))
            return start, size, State.IN_USE
        elif head >> 13 & 7 == 6:
            what = f"the slot at {start:#x} held a group that no meta describes"
            self._say(Problem(start, what))
            return start, size, State.METADATA
        elif head >> 8 & 0xFF in (0xFF, 0) and head & 0xFFFF00FF == 0 and number | (head >> 8 & 0xFF):
            what = f"the slot at {start:#x} is about to be given out or taken back: the process was stopped in malloc or free"
            self._say(Problem(start, what, False))
            return start, size, State.FREE
        else:
            what = f"the header of the block at {start:#x} is {head:#010x}, not of slot {number}: overwritten"
        self._say(Problem(start - HEADER, f"{what}; free() of it would crash", True, Range(start - HEADER, start)))
        return start, size, State.IN_USE

    def _moved(self, group: Group, start: int, end: int, offset: int) -> Iterator[int]:
        """Where the block of a slot may begin: the 16 bits of its offset leave out what is above 1 MiB."""
        at = start + offset * UNIT
        while at < end:
            if at != start:
                yield at
            at += UNIT << 16

    def _reserve(self, block: int, end: int, number: int, offset: int) -> int:
        """Bytes of the slot that were not asked for, if `block` has the header of a block there; -1 otherwise."""
        head = self.memory.int32(block - HEADER)
        if head is None or head >> 8 & 31 != number:
            return -1
        wide = head & 0xFF
        told = head >> 16
        if wide:
            told = (self.memory.int32(block - 2 * HEADER) or 0) if not told else -1
        if told != offset:
            return -1
        reserve = head >> 13 & 7
        if reserve == 5:
            reserve = self.memory.int32(end - HEADER) or 0
            return reserve if 5 <= reserve <= end - block else -1
        return reserve if reserve < 5 and reserve <= end - block else -1

    def _count(self, batch: Sequence[Segment], read: Read) -> None:
        at = 0
        for _, group, first, last in batch:
            until = at + last - first
            used = sum(read.sizes[at:until])
            if group.mask:
                used -= sum(size for size, state in zip(read.sizes[at:until], read.states[at:until]) if state)
            key = group.number, group.label
            self.used[key] = self.used.get(key, 0) + used
            at = until


def _segment_of(batch: Sequence[Segment], start: int) -> int:
    """The number of the segment that a slot stands in."""
    low, high = 0, len(batch)
    while high - low > 1:
        middle = (low + high) // 2
        if batch[middle].start <= start:
            low = middle
        else:
            high = middle
    return low


def batches(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Segments that stand within SPAN of each other, or large ones."""
    batch: list[Segment] = []
    begin = 0
    for segment in segments:
        if batch and (segment.start - begin > SPAN or len(batch) >= 4096):
            yield batch
            batch = []
        if not batch:
            begin = segment.start
        batch.append(segment)
    if batch:
        yield batch
