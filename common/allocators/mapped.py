"""Anonymous mappings that leaked, as blocks: memory that a program got from mmap, not from an
allocator.

Each mapping is one block in use, so that every command treats it as it treats leaked blocks.
session/leaked_mappings.py finds them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from findleaks.allocators.base import Allocator, Heap
from findleaks.engine.terms import State
from findleaks.target.base import Range

NAME = "mmap"
LEAST, MUCH = 1 << 20, 4 << 20
MANY = 8
"""Leaked mappings are reported if they have MUCH bytes, or if they have LEAST bytes and are MANY:
leaks repeat. Others are roots, as in memcheck: a program may map some memory once, and keep no
address of it."""
TYPE = "anonymous mapping"
"""The type of these blocks, unless their content shows another."""


class MappedMemory(Allocator):
    """The leaked mappings of a process. It is no allocator: it has no metadata and no caches."""

    name = NAME
    version = ""
    where = ""

    def __init__(self, ranges: Sequence[Range], granule: int) -> None:
        """`ranges`: whole pages, ascending and disjoint. `granule`: a divisor of their starts."""
        self.granule = granule
        self.problems = []
        self.ranges = ranges
        self._starts = [start for start, _ in ranges]
        self._heaps = [_as_heap(*one) for one in ranges]

    def has(self, address: int) -> bool:
        """Whether an address is in one of them."""
        at = bisect_right(self._starts, address) - 1
        return at >= 0 and address < self.ranges[at].end

    def heaps(self) -> Sequence[Heap]:
        return self._heaps


def _as_heap(start: int, end: int) -> Heap:
    return Heap(start, end, "", lambda blocks: blocks.append([start], [end - start], [State.IN_USE]))


NO_MAPPINGS = MappedMemory((), 4096)
