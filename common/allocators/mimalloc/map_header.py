"""The beginning of mimalloc 3.x's page map (src/page-map.c)."""

from __future__ import annotations

from findleaks.allocators.memory import Memory

MAP_HEADERS = (80, 88)
"""Bytes before the entries of the page map of 3.6, by those of its pthread_mutex_t: 40 or, on
AArch64, 48."""

MIN_MAP, MAX_MAP = 1 << 12, 1 << 23
"""Bytes of the first level of the page map, a power of two: 8 for each 512 MiB of address space."""


def map_header(memory: Memory, address: int) -> int:
    """Bytes of the header of a page map of 3.6: the first entry points behind them all; 0: none."""
    for header in MAP_HEADERS:
        if is_map_size(((memory.word(address + header) or 0) - address) // (2 * MIN_MAP) * (2 * MIN_MAP)):
            return header
    return 0


def is_map_size(size: int) -> bool:
    return MIN_MAP <= size <= MAX_MAP and not size & (size - 1)
