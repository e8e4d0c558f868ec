"""Pool resources whose upstream resource is another memory resource of libstdc++.

Source: libstdc++-v3/include/std/memory_resource of GCC 12 to 15 (monotonic_buffer_resource).

The chunks of such a pool resource are parts of the memory of the upstream resource:

- A monotonic_buffer_resource divides blocks of malloc, or a buffer of the program. It does not
  store where its objects begin, so the memory beside the chunks stays scanned for references. If
  such a block of malloc is leaked, it is not divided: its other objects leaked with it.
- In another pool resource, a chunk is one block.

A pool resource with another upstream resource, such as one of the program, is not divided."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.allocators.pmr.resources import LARGER, RECORD, UNIT, Chunk, Resource
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.errors import Interrupted
from findleaks.target.base import Range, Target
from findleaks.target.ranges import nonzero_pieces

_MONOTONIC = b"NSt3pmr25monotonic_buffer_resourceE"
_CURRENT, _AVAILABLE, _OUTER, _BUFFER = 1, 2, 4, 5  # words of a monotonic_buffer_resource
MOST_DEPTH = 8  # of pool resources in pool resources


class _Placer:
    """The result of `place_resources` so far, by the addresses of the resources."""

    def __init__(self, memory: Memory, blocks: Blocks, found: Mapping[int, Resource], is_leaked: Callable[[int], bool]) -> None:
        self._memory, self._blocks, self._found, self._is_leaked = memory, blocks, found, is_leaked
        self._depths: dict[int, Optional[int]] = {}
        self._dead: set[int] = set()  # resources in leaked blocks, or in memory that was released

    def place(self, one: Resource) -> Resource:
        """Return a resource with its depth, and the unused memory around its chunks."""
        if not one.inner:
            return one
        depth = self._depth(one)
        if depth is None or not self._is_inside([*(Range(chunk.start, chunk.end) for chunk in one.inner), *one.tables]):
            undivided = 0 if one.address in self._dead else sum(chunk.end - chunk.start for chunk in one.inner)
            return one._replace(inner=(), arrays=(), tables=(), undivided=undivided)
        buffer = self._memory.words(one.upstream + 8 * _BUFFER, 2) if self._is_monotonic(one.upstream) else None
        whole = Range(buffer[0], buffer[0] + buffer[1]) if buffer and buffer[0] else None
        return one._replace(inner=sorted(one.inner), depth=depth, unused=self._list_unused(one), buffer=whole)

    def _is_monotonic(self, resource: int) -> bool:
        """Whether the type information of the object at an address has the name of this class. The
        virtual table may be a copy in any file."""
        at: Optional[int] = resource
        for offset in (0, -8, 8):  # of the virtual table, the type information, its name
            at = self._memory.word(at + offset) if at and at % 8 == 0 else None
        return at is not None and self._memory.c_string(at, 64).lstrip(b"*") == _MONOTONIC

    def _depth(self, one: Resource) -> Optional[int]:
        """Return the number of pool resources around a resource; None if its chunks cannot be
        divided."""
        if one.address not in self._depths:
            self._depths[one.address] = None  # in a damaged process, resources may be in a cycle
            self._depths[one.address] = self._count_pools(one)
        return self._depths[one.address]

    def _count_pools(self, one: Resource) -> Optional[int]:
        if not one.inner:
            return 0
        if self._is_monotonic(one.upstream):
            outer = self._memory.word(one.upstream + 8 * _OUTER)
            if not outer or outer in self._found:
                return None
            unused = self._list_unused(one)
            if any(_overlap(chunk, unused) or self._is_leaked(chunk.start) for chunk in one.inner):
                self._dead.add(one.address)
                return None
            return 0
        around = self._found.get(one.upstream)
        depth = self._depth(around) if around is not None and not around.damaged else None
        if around is not None and around.address in self._dead:
            self._dead.add(one.address)
        return depth + 1 if depth is not None and depth < MOST_DEPTH else None

    def _list_unused(self, one: Resource) -> list[Range]:
        """Return the part of a monotonic_buffer_resource that follows its last object."""
        words = self._memory.words(one.upstream, _OUTER + 1) if self._is_monotonic(one.upstream) else None
        return [Range(words[_CURRENT], words[_CURRENT] + words[_AVAILABLE])] if words and words[_AVAILABLE] else []

    def _is_inside(self, parts: Sequence[Range]) -> bool:
        """Whether parts of a resource are disjoint, and each is inside one block in use, or outside
        of blocks."""
        last = 0
        for start, end in sorted(part for part in parts if part.start != part.end):
            block = self._blocks.lookup(start)
            if block is None:
                index = self._blocks.at_or_after(start)
                following = self._blocks.address(index) if index < len(self._blocks) else end
                is_inside = following >= end and self._memory.word(end - 8) is not None
            else:
                is_inside = block[3] == State.IN_USE and end <= block[1] + block[2]
            if start < last or start >= end or not is_inside:
                return False
            last = end
        return True


def _overlap(chunk: Chunk, ranges: Sequence[Range]) -> bool:
    return any(start < chunk.end and chunk.start < end for start, end in ranges)


def find_former_records(engine: Engine, memory: Memory, chunks: Sequence[Chunk], ranges: Sequence[Range]) -> Iterator[Range]:
    """Yield the records of `chunks` in `ranges`, also those in arrays that a resource has replaced
    by larger ones: a monotonic_buffer_resource keeps them. The record of a chunk begins with the
    address of the bitmap, that of a larger block with the address of the block, and its length.

    A length includes the alignment, so that it differs from the sizes that a program stores. Only
    without alignment, an object of the program may have the same two words."""
    wanted = {chunk.bits if chunk.bits < chunk.end else chunk.start: chunk for chunk in chunks}
    places = sorted(wanted)
    for start, end in ranges if wanted else ():
        if memory.target.is_interrupted():
            raise Interrupted
        for piece in nonzero_pieces(memory.target, start, end):
            for place in engine.search_any(piece, places):
                words = memory.words(place, RECORD // 8)
                chunk = wanted[words[0]] if words is not None else None
                if words is not None and chunk is not None and chunk.bits < chunk.end and words[2] == chunk.start:
                    yield Range(place, place + RECORD)
                elif words is not None and chunk is not None and words[1] == chunk.length and words[1] % UNIT:
                    yield Range(place, place + LARGER)


def place_resources(target: Target, blocks: Blocks, found: Sequence[Resource], is_leaked: Callable[[int], bool]) -> Sequence[Resource]:
    """Determine where the chunks of the resources in other resources are. If this is not certain,
    the result has a resource without chunks. For `is_leaked` see directory.find_nested."""
    if not any(one.inner for one in found):
        return found
    memory = Memory(target)
    placer = _Placer(memory, blocks, {one.address: one for one in found}, is_leaked)
    return [placer.place(one) for one in found]
