"""Shared zones of nginx, such as those of caches and limits, with their slab allocator.

Source: src/core/ngx_slab.h (ngx_slab_pool_t), ngx_cycle.h (ngx_shm_zone_t), src/os/unix/ngx_shmem.h
of nginx 1.22, 64-bit."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.target.base import Range
from findleaks.value_classes import NamedTuple

LEAST_SIZE, SHIFT = 2, 3  # places of `min_size` and `min_shift` in ngx_slab_pool_t, in words
MOST_SHIFT = 12
FREE, START, END = 10, 11, 12  # places of `pfree`, `start` and `end`
WORDS = 13
PAGE = 4096
LEAST = 8 * PAGE  # bytes of the smallest zone
NAME = 16  # offset of `name` (length and address) from `addr` in ngx_shm_t
LONGEST = 256


class Zone(NamedTuple):
    """A zone [start, end). `pages` and `free` are numbers of pages of its allocator."""

    name: str
    start: int
    end: int
    pages: int
    free: int


def find_zones(memory: Memory, engine: Engine, heaps: Sequence[Range]) -> list[Zone]:
    """Return the zones of a process, by address."""
    found = {}
    for region in memory.target.regions():
        if not region.readable or not region.writable or region.end - region.start < LEAST:
            continue
        words = memory.words(region.start, WORDS)
        if words is None or words[SHIFT] > MOST_SHIFT or words[LEAST_SIZE] != 1 << words[SHIFT]:
            continue
        if region.start < words[START] < words[END] <= region.end and words[FREE] * PAGE <= words[END] - words[START]:
            found[region.start] = (words[START], words[END], words[FREE])
    names = _names(memory, engine, heaps, sorted(found))
    return [Zone(names.get(address, ""), address, end, (end - start) // PAGE, free) for address, (start, end, free) in found.items()]


def _names(memory: Memory, engine: Engine, heaps: Sequence[Range], zones: Sequence[int]) -> dict[int, str]:
    found: dict[int, str] = {}
    for start, end in heaps if zones else ():
        for piece in memory.target.pieces(start, end):
            for place in engine.search_any(piece, zones):
                zone, text = memory.word(place), memory.words(place + NAME, 2)
                if zone is not None and text is not None and 0 < text[0] <= LONGEST:
                    name = memory.read(text[1], text[0])
                    if name.isascii() and name.decode("ascii").isprintable() and name:
                        found.setdefault(zone, name.decode("ascii"))
    return found
