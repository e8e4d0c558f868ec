"""Leaked anonymous mappings as blocks. The program got this memory from mmap, not from an
allocator.

Each mapping is one block in use, so that every command treats it like other leaked blocks.
session/leaked_mappings.py finds the mappings."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from findleaks.allocators.base import Allocator, Heap
from findleaks.engine.terms import State
from findleaks.target.base import Range

NAME = "mmap"
LEAST, MUCH = 1 << 20, 4 << 20
MANY = 8
"""Leaked mappings are reported if they have at least MUCH bytes in total. If there are at least
MANY mappings, LEAST bytes are enough, because leaks repeat. Otherwise the mappings are roots, as in
memcheck, because a program may map memory once and keep no address of it."""
TYPE = "anonymous mapping"
"""The type of these blocks, unless their content shows another."""


class MappingBlocks(Allocator):
    """The leaked mappings of a process, presented as an allocator without metadata and caches."""

    name = NAME
    version = ""
    where = ""

    def __init__(self, ranges: Sequence[Range], granule: int) -> None:
        """`ranges` are whole pages, ascending and disjoint. `granule` divides all their starts."""
        self.granule = granule
        self.problems = []
        self.ranges = ranges
        self.doubtful: Sequence[Range] = ()  # See LeakedMappings in session/leaked_mappings.py.
        self._starts = [start for start, _ in ranges]
        self._heaps = [_as_heap(*one) for one in ranges]

    def has(self, address: int) -> bool:
        """Whether an address is in one of the mappings."""
        at = bisect_right(self._starts, address) - 1
        return at >= 0 and address < self.ranges[at].end

    def heaps(self) -> Sequence[Heap]:
        return self._heaps


def _as_heap(start: int, end: int) -> Heap:
    return Heap(start, end, "", lambda blocks: blocks.append([start], [end - start], [State.IN_USE]))


NO_MAPPINGS = MappingBlocks((), 4096)
