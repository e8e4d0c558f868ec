"""The start of mimalloc 3.x's page map (src/page-map.c)."""

from __future__ import annotations

from findleaks.allocators.memory import Memory

MAP_HEADERS = (80, 88)
"""Bytes before the entries of the page map of 3.6: with a pthread_mutex_t of 40 bytes, or of 48
(AArch64)."""

MIN_MAP, MAX_MAP = 1 << 12, 1 << 23
"""The size of the page map's first level in bytes, a power of two: 8 for each 512 MiB of
addresses."""


def measure_map_header(memory: Memory, address: int) -> int:
    """Return the size of the header of a page map of 3.6, or 0 if there is no such header. The
    first entry points to the address after all entries."""
    for header in MAP_HEADERS:
        if is_map_size(((memory.word(address + header) or 0) - address) // (2 * MIN_MAP) * (2 * MIN_MAP)):
            return header
    return 0


def is_map_size(size: int) -> bool:
    """Whether the first level of a page map may have `size` bytes."""
    return MIN_MAP <= size <= MAX_MAP and not size & (size - 1)
