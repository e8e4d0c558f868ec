"""The heap and allocator that own each range of memory: parts of heaps, stored in columns."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Optional

from findleaks.allocators.base import Allocator, Heap
from findleaks.target.base import Range
from findleaks.value_classes import NamedTuple


class HeapPart(NamedTuple):
    """A part [start, end) of a heap that contains no other heap. The part belongs to `heap`, which
    belongs to `allocator`."""

    heap: Heap
    allocator: Allocator
    start: int
    end: int


class HeapParts:
    """Parts of heaps, ascending and disjoint. There may be millions of parts, so a HeapPart is
    created only when a caller requests it. `owners` lists each heap once, with its allocator.
    `apart` lists the slabs that are in no other heap."""

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
        """Add a heap that was not added before, and return its number."""
        self.owners.append((heap, allocator))
        return len(self.owners) - 1

    def append(self, number: int, start: int, end: int) -> None:
        """Append a part of the heap with this number, unless it is empty."""
        if start < end:
            self._starts.append(start)
            self._ends.append(end)
            self._numbers.append(number)

    def append_slabs(self, number: int, start: int, end: int, slabs: array[int], numbers: array[int]) -> None:
        """Append the range [start, end) of the heap with this number. The slabs inside this range
        belong to other heaps, whose numbers are `numbers`. `slabs` has the starts and ends of these
        slabs ("Q")."""
        if not slabs:
            self.append(number, start, end)
            return
        self.append(number, start, slabs[0])
        owners = array("I", [number]) * (len(slabs) - 1)
        owners[::2] = numbers
        inside = memoryview(slabs).cast("B")  # there may be millions of slabs: no copies
        self._starts.frombytes(inside[: -slabs.itemsize])
        self._ends.frombytes(inside[slabs.itemsize :])
        self._numbers.extend(owners)
        self.append(number, slabs[-1], end)

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[HeapPart]:
        for start, end, number in zip(self._starts, self._ends, self._numbers):
            if start < end:
                yield HeapPart(*self.owners[number], start, end)

    def allocators_at(self, addresses: Iterable[int]) -> Iterator[Optional[Allocator]]:
        """Yield the allocator of the part that contains each of these addresses, or None. Fast if
        neighbouring addresses are often in the same part."""
        start = end = 0
        allocator: Optional[Allocator] = None
        for address in addresses:
            if not start <= address < end:
                at = bisect_right(self._starts, address) - 1
                start, end = (self._starts[at], self._ends[at]) if at >= 0 else (0, 0)
                allocator = self.owners[self._numbers[at]][1] if at >= 0 else None
            yield allocator if start <= address < end else None

    def at(self, address: int) -> Optional[HeapPart]:
        """Return the part that contains an address, or None."""
        at = bisect_right(self._starts, address) - 1
        if at < 0 or address >= self._ends[at]:
            return None
        return HeapPart(*self.owners[self._numbers[at]], self._starts[at], self._ends[at])
