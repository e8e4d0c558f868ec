"""The blocks that a thread inside jemalloc refers to by the stack of a cache it fills or flushes.

A fill (cache_bin.h of 5.3, cache_bin_init_ptr_array_for_fill; tcache.c of 5.2, tbin_fill) takes
regions from a slab one after the other and puts their addresses into the cache's stack, where they
count as cached only when all are there. A flush returns regions whose addresses stay on the stack
until all are returned. In between, a register points into the stack.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from findleaks.allocators.base import starts
from findleaks.allocators.jemalloc.view import JemallocView
from findleaks.engine.contract import Blocks


def blocks_in_flight(heap: JemallocView, words: Sequence[int], blocks: Blocks) -> Iterator[int]:
    """See Allocator.blocks_in_flight: all entries on the stacks of caches that a word points into;
    the block of a descriptor that a word points to."""
    for cache in heap.caches_found:
        low = cache.stacks_at
        for stack in sorted(cache.stacks, key=lambda stack: stack.address):
            end = stack.address + 8 * len(stack.entries)
            at = bisect_left(words, low)
            if low < end and at < len(words) and words[at] <= end:
                yield from heap.memory.words(low, (end - low) // 8) or ()
            low = end
    extents = heap.parts.extents
    for descriptor in set(words).intersection(extents.descriptors):
        index = extents.descriptors.index(descriptor)
        yield from starts(blocks, extents.start[index], extents.end(index))
