"""Find the blocks to which a thread inside jemalloc refers by the stack of a cache that it is
filling or flushing.

A fill (cache_bin.h of 5.3, cache_bin_init_ptr_array_for_fill; tcache.c of 5.2, tbin_fill) writes
the addresses of a slab's regions to the stack one by one. jemalloc counts them as cached only after
all are written. A flush leaves the addresses on the stack until all blocks are returned. In
between, a register points into the stack."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from findleaks.allocators.base import list_starts
from findleaks.allocators.jemalloc.view import JemallocView
from findleaks.engine.contract import Blocks


def find_blocks_in_flight(heap: JemallocView, words: Sequence[int], blocks: Blocks) -> Iterator[int]:
    """Yield all blocks in each array of cached blocks that one of the words points into, and the
    blocks of each descriptor that one of the words points to."""
    for cache in heap.caches_found:
        low = cache.stacks_at
        for stack in sorted(cache.stacks, key=lambda stack: stack.address):
            end = stack.address + heap.memory.size * len(stack.entries)
            at = bisect_left(words, low)
            if low < end and at < len(words) and words[at] <= end:
                yield from heap.memory.words(low, (end - low) // heap.memory.size) or ()
            low = end
    extents = heap.parts.extents
    for descriptor in set(words).intersection(extents.descriptors):
        index = extents.descriptors.index(descriptor)
        yield from list_starts(blocks, extents.start[index], extents.end(index))
