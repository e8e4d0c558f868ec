"""Who owns which memory: the parts of heaps, in columns."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Optional

from findleaks.allocators.base import Allocator, Heap
from findleaks.target.base import Range
from findleaks.value_classes import NamedTuple


class HeapPart(NamedTuple):
    """A part [start, end) of a heap that contains no other heap. `heap` and `allocator` are those
    to which it belongs."""

    heap: Heap
    allocator: Allocator
    start: int
    end: int


class HeapParts:
    """Parts of heaps, ascending and disjoint. There may be millions of them, so they become objects
    only when they are asked for. `owners` are the heaps, each once, with their allocators. `apart`
    are the slabs that are in no other heap."""

    def __init__(self, parts: Iterable[HeapPart] = ()) -> None:
        self._starts, self._ends, self._numbers = array("Q"), array("Q"), array("I")
        self.owners: list[tuple[Heap, Allocator]] = []
        self.apart: list[Range] = []
        known: dict[int, int] = {}
        for part in parts:
            if id(part.heap) not in known:
                known[id(part.heap)] = self.number(part.heap, part.allocator)
            self.append(known[id(part.heap)], part.start, part.end)

    def number(self, heap: Heap, allocator: Allocator) -> int:
        """Return the number of a heap that was not added before."""
        self.owners.append((heap, allocator))
        return len(self.owners) - 1

    def append(self, number: int, start: int, end: int) -> None:
        """Append a part of the heap with this number, unless it is empty."""
        if start < end:
            self._starts.append(start)
            self._ends.append(end)
            self._numbers.append(number)

    def append_slabs(self, number: int, start: int, end: int, slabs: array[int], numbers: array[int]) -> None:
        """Append [start, end) of the heap with this number, except its slabs, which belong to the
        heaps with `numbers`. `slabs` has their starts and ends ("Q")."""
        if not slabs:
            self.append(number, start, end)
            return
        self.append(number, start, slabs[0])
        owners = array("I", [number]) * (len(slabs) - 1)
        owners[::2] = numbers
        self._starts.extend(slabs[:-1])
        self._ends.extend(slabs[1:])
        self._numbers.extend(owners)
        self.append(number, slabs[-1], end)

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[HeapPart]:
        for start, end, number in zip(self._starts, self._ends, self._numbers):
            if start < end:
                yield HeapPart(*self.owners[number], start, end)

    def at(self, address: int) -> Optional[HeapPart]:
        """Return the part that contains an address, or None."""
        at = bisect_right(self._starts, address) - 1
        if at < 0 or address >= self._ends[at]:
            return None
        return HeapPart(*self.owners[self._numbers[at]], self._starts[at], self._ends[at])
