"""Read the transient heap of Ruby 2.6 to 3.2: an arena for the elements of young Arrays, Hashes,
Structs and Objects.

The arena has 1,024 blocks. The collector moves live elements to malloc's memory, and resets a block
by setting its index to 0. The words in reset blocks are stale. A variable of the interpreter
(global_transient_heap) refers to the arena and to three lists of blocks.

Source: transient_heap.c (struct transient_heap, transient_heap_block, transient_alloc_header) of
2.7.4 and 3.1.2."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.runtimes.memory_part import Part
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges, range_at, subtract

_BLOCK, _ARENA = 32 << 10, 32 << 20  # bytes of a block and of the arena
_LISTS, _ARENA_AT = 3, 7  # number of lists of blocks; index of the word with the arena's address
_HEADER = 16  # bytes of the header of a block


class TransientHeap(NamedTuple):
    """The arena, and the words in it that are in no allocation."""

    arena: Range
    dead: Sequence[Range]

    def describe(self) -> Part:
        """Return the transient heap as a part of the runtime's memory."""
        used = self.arena.end - self.arena.start - sum(part.end - part.start for part in self.dead)
        return Part("transient heap", [self.arena], used, False, "elements of young Arrays, Hashes, Structs and Objects")

    def inside(self, blocks: Blocks) -> Sequence[Range]:
        """Return the arena if it is in an allocator's block, as in 2.7; else ()."""
        return () if blocks.lookup(self.arena.start) is None else (self.arena,)


def find_transient_heap(target: Target, memory: Memory, data: Iterable[Range]) -> Optional[TransientHeap]:
    """Return the transient heap; None if there is none. `data` is memory of the interpreter's
    variables."""
    writable = merge_ranges(Range(r.start, r.end) for r in target.regions() if r.anonymous and r.readable and r.writable)
    arena = next(filter(None, (_find_arena(memory, part, writable) for part in data)), None)
    if arena is None:
        return None
    used = merge_ranges(_find_used(memory, arena))
    return TransientHeap(arena, subtract([arena], used))


def _find_arena(memory: Memory, part: Range, writable: Sequence[Range]) -> Optional[Range]:
    for _, words in memory.scan(*part):
        for at in range(len(words) - _ARENA_AT):
            start = words[at + _ARENA_AT]
            if not start or start % _BLOCK:
                continue
            arena, region = Range(start, start + _ARENA), range_at(writable, start)
            lists = words[at : at + _LISTS]
            is_list = (not one or (one % _BLOCK == 0 and arena.start <= one < arena.end) for one in lists)
            if region is not None and arena.end <= region.end and any(lists) and all(is_list):
                return arena
    return None


def _find_used(memory: Memory, arena: Range) -> Iterator[Range]:
    """Yield the used part of each block. The index in a block's header is the number of bytes after
    the header that contain allocations."""
    for block in range(arena.start, arena.end, _BLOCK):
        index = min((memory.word(block) or 0) & 0xFFFF, _BLOCK - _HEADER)
        yield Range(block + _HEADER, block + _HEADER + index)
