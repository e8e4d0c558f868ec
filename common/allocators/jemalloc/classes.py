"""Size classes. Small ones are read from bin_infos in memory, and large ones are derived from them
(sc.c)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.target.base import Range

PAGES = (12, 13, 14, 16)
STRIDES = {8: (40, 88), 4: (48,)}
"""Sizes of a bin_info_t by bytes of a word: with plain bitmaps, or with trees of bitmaps (pages
from 16 KiB, and words of 4 bytes; bitmap.h), whose lowest level comes first."""

LARGEST = {8: 7 << 60, 4: 7 << 28}  # the largest size class in bytes, by bytes of a word
MIN_SMALL, MAX_SMALL = 20, 128  # the least and greatest number of small classes


class Small(NamedTuple):
    """A row of bin_infos: bytes of a region and of a slab, regions of a slab, bins of an arena."""

    size: int
    slab: int
    regions: int
    shards: int


@dataclass(frozen=True)
class Classes:
    """All size classes. `table` is the memory of bin_infos, `page` the base-2 logarithm of the page
    size. `sizes` has the bytes of each class by its index (szind), small classes first."""

    table: Range
    page: int
    small: Sequence[Small]
    sizes: Sequence[int]

    @cached_property
    def szind_bits(self) -> int:
        return (len(self.sizes) - 1).bit_length()

    @cached_property
    def most_regions(self) -> int:
        return max(small.regions for small in self.small)

    @cached_property
    def bitmap(self) -> int:
        """Bytes of the lowest level of the bitmap in the class with the most regions."""
        return (self.most_regions + 63) // 64 * 8

    def bitmaps(self, word: int) -> int:
        """Return the bytes of all levels of a bitmap for the largest possible number of regions. If
        the lowest level has more than 8 words, there are levels above it, in which each bit
        describes a word of the level below (bitmap.h)."""
        sizes = [max(1 << self.page - 3, self.most_regions)]
        while len(sizes) < 2 or (sizes[1] > 8 and sizes[-1] > 1):
            sizes.append(-(-sizes[-1] // (8 * word)))
        return word * sum(sizes[1:])


def read_classes(memory: Memory, second: int) -> Optional[Classes]:
    """Read the classes if the entry of bin_infos for 32 bytes is at `second`. Return None if it is
    not."""
    entry = _read_entry(memory, second)
    if entry is None or entry.size != 32 or entry.slab not in [1 << page for page in PAGES] or entry.regions != entry.slab // 32:
        return None
    page = entry.slab.bit_length() - 1
    for stride in STRIDES[memory.size]:
        first = second
        while first - stride > 0 and second - first < 8 * stride:
            before, after = _read_entry(memory, first - stride), _read_entry(memory, first)
            if before is None or after is None or not _is_plausible(before, page) or before.size >= after.size:
                break
            first -= stride
        small: list[Small] = []
        while len(small) < MAX_SMALL:
            entry = _read_entry(memory, first + len(small) * stride)
            if entry is None or not _is_plausible(entry, page) or (small and entry.size <= small[-1].size):
                break
            small.append(entry)
        sizes = list(_compute_sizes([entry.size for entry in small[:3]], memory.size)) if len(small) >= MIN_SMALL else []
        if small and [entry.size for entry in small] == sizes[: len(small)]:
            return Classes(Range(first, first + len(small) * stride), page, small, sizes)
    return None


def _read_entry(memory: Memory, address: int) -> Optional[Small]:
    """Read an entry of bin_infos. None unless its number of regions is repeated in the bitmap
    information."""
    members = memory.members(address, "PPIIP")
    return Small(*members[:4]) if members is not None and members[4] == members[2] else None


def _is_plausible(entry: Small, page: int) -> bool:
    size, slab, count, shards = entry
    return 0 < size <= slab <= 64 << page and slab % (1 << page) == 0 and 0 < count <= slab // size and 1 <= shards <= 64 and size % 8 == 0


def _compute_sizes(first: Sequence[int], word: int = 8) -> Iterator[int]:
    """Yield the sizes that sc_data_init (sc.c) computes: tiny classes, four multiples of the
    quantum, then four classes for each doubling.

    Example for a quantum of 16: 8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256 …"""
    quantum = first[2] - first[1]
    size = first[0]
    while size < quantum:
        yield size
        size *= 2
    for multiple in range(1, 5):
        yield multiple * quantum
    base = 4 * quantum
    while base <= LARGEST[word]:
        for step in range(1, 5):
            if base + step * base // 4 <= LARGEST[word]:
                yield base + step * base // 4
        base *= 2
