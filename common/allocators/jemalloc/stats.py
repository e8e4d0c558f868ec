"""jemalloc's counters, as malloc_stats_print would print them now.

Sources: src/stats.c, src/ctl.c, arena_stats_merge.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from findleaks.allocators.jemalloc import arenas
from findleaks.allocators.jemalloc.arenas import Arena, Shape
from findleaks.allocators.jemalloc.classes import Classes
from findleaks.allocators.jemalloc.layout import BIN_STATS
from findleaks.allocators.memory import Memory


def bins(memory: Memory, classes: Classes, arena: Arena, shape: Shape) -> Optional[list[dict[str, int]]]:
    """bin_stats_t of every small class of an arena, with shards added up; None where they were not
    found, are not kept, or cannot be read."""
    if shape.bins is None or not shape.counts:
        return None
    at, found = arena.address + shape.bins, []
    for small in classes.small:
        sums = dict.fromkeys(BIN_STATS, 0)
        for _ in range(small.shards):
            words = memory.words(at + shape.bin.stats, len(BIN_STATS))
            if words is None:
                return None
            for name, word in zip(BIN_STATS, words):
                sums[name] += word
            at += shape.bin.size
        found.append(sums)
    return found


def large(memory: Memory, classes: Classes, arena: Arena, shape: Shape) -> Optional[list[dict[str, int]]]:
    """The counters of every large class of an arena. Counters that jemalloc only computes when it
    merges statistics are computed in the same way: requests are those served by the arena plus
    those served by thread caches; a fill brings one block."""
    if shape.large is None:
        return None
    row, number = shape.large_row, len(classes.sizes) - len(classes.small)
    words = memory.words(arena.address + shape.large, number * row.size // 8)
    if words is None:
        return None
    found = []
    for at in range(0, len(words), row.size // 8):
        made, gone = words[at], words[at + 1]
        found.append(
            {
                "nmalloc": made,
                "ndalloc": gone,
                "nrequests": made + words[at + row.nrequests // 8],
                "nfills": made,
                "nflushes": words[at + row.nflushes // 8],
                "curlextents": max(made - gone, 0),
            }
        )
    return found


def util(counters: Mapping[str, int]) -> str:
    """The column "util" of the table of bins, as text (stats.c, get_rate_str)."""
    total, used = counters["nregs"] * counters["curslabs"], counters["curregs"]
    if not total or used == total:
        return "1"
    if used > total:
        return " race"
    return f"0.{1000 * used // total:03d}"


def internal(memory: Memory, arena: Arena, shape: Shape) -> int:
    """Bytes of blocks that jemalloc made for itself; 0 if unknown."""
    return arenas.internal(memory, arena, shape) or 0
