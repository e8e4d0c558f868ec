"""jemalloc's counters as malloc_stats_print shows them (stats.c, ctl.c, arena_stats_merge)."""

from __future__ import annotations

from typing import Optional

from findleaks.allocators.jemalloc.arenas import JemallocArena, read_bin_counters
from findleaks.allocators.jemalloc.layout import BIN_STATS, get_layouts
from findleaks.allocators.jemalloc.view import JemallocView


def read_bins(allocator: JemallocView, arena: JemallocArena) -> Optional[list[dict[str, int]]]:
    """Read bin_stats_t of an arena's small classes, summed over shards; None if not available."""
    shape = allocator.parts.shape
    if shape.bins is None or not shape.counts:
        return None
    rows = read_bin_counters(allocator.memory, allocator.parts.classes, arena.address + shape.bins, shape.bin)
    return None if rows is None else [dict(zip(BIN_STATS, row)) for row in rows]


def read_large(allocator: JemallocView, arena: JemallocArena) -> Optional[list[dict[str, int]]]:
    """Read the counters of an arena's large classes. Add the values that jemalloc computes when it
    merges statistics: requests are the sum of those of the arena and of thread caches, and each
    fill counts as one block."""
    shape, classes = allocator.parts.shape, allocator.parts.classes
    if shape.large is None:
        return None
    row, number = shape.large_row, len(classes.sizes) - len(classes.small)
    word = allocator.memory.size
    step, nrequests, nflushes = row.size // word, row.nrequests // word, row.nflushes // word
    longs = allocator.memory.longs(arena.address + shape.large, number * step)
    found = []
    for at in range(0, len(longs), step):
        made, gone = longs[at], longs[at + 8 // word]
        found.append(
            {
                "nmalloc": made,
                "ndalloc": gone,
                "nrequests": made + longs[at + nrequests],
                "nfills": made,
                "nflushes": longs[at + nflushes],
                "curlextents": max(made - gone, 0),
            }
        )
    return found or None


def read_internal(allocator: JemallocView, arena: JemallocArena) -> int:
    """Read stats.internal of an arena: bytes of blocks that jemalloc allocated for itself; 0 if
    unknown."""
    shape = allocator.parts.shape
    for row in get_layouts(allocator.memory.arch).arenas:
        if row.tcaches == shape.tcaches or row.large == shape.large:
            return allocator.memory.word(arena.address + row.internal) or 0
    return 0
