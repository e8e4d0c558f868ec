"""Size classes: small ones from bin_infos in memory, large ones derived from these (sc.c)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.target.base import Range

PAGES = (12, 13, 14, 16)
STRIDES = (40, 88)
"""Bytes of a bin_info_t: with plain bitmaps, or (pages from 16 KiB, bitmap.h) with trees of
bitmaps, whose lowest level comes first."""

LARGEST = 7 << 60  # bytes of the largest size class
MIN_SMALL, MAX_SMALL = 20, 128  # number of small classes


class Small(NamedTuple):
    """A row of bin_infos: bytes of a region and a slab, regions of a slab, bins of an arena."""

    size: int
    slab: int
    regions: int
    shards: int


@dataclass(frozen=True)
class Classes:
    """All size classes. `table`: memory of bin_infos; `page`: base-2 logarithm of the page size;
    `sizes`: bytes by index (szind), first the small classes."""

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
        """Bytes of a bitmap's lowest level for the class with most regions."""
        return (self.most_regions + 63) // 64 * 8


def read(memory: Memory, second: int) -> Optional[Classes]:
    """The classes, if bin_infos' entry for 32 bytes is at `second`."""
    entry = _entry(memory, second)
    if entry is None or entry.size != 32 or entry.slab not in [1 << page for page in PAGES] or entry.regions != entry.slab // 32:
        return None
    page = entry.slab.bit_length() - 1
    for stride in STRIDES:
        first = second
        while first - stride > 0 and second - first < 8 * stride:
            before, after = _entry(memory, first - stride), _entry(memory, first)
            if before is None or after is None or not _plausible(before, page) or before.size >= after.size:
                break
            first -= stride
        small: list[Small] = []
        while len(small) < MAX_SMALL:
            entry = _entry(memory, first + len(small) * stride)
            if entry is None or not _plausible(entry, page) or (small and entry.size <= small[-1].size):
                break
            small.append(entry)
        sizes = list(_sizes([entry.size for entry in small[:3]])) if len(small) >= MIN_SMALL else []
        if small and [entry.size for entry in small] == sizes[: len(small)]:
            return Classes(Range(first, first + len(small) * stride), page, small, sizes)
    return None


def _entry(memory: Memory, address: int) -> Optional[Small]:
    words = memory.words(address, 4)
    if words is None:
        return None
    regions, shards = memory.halves(words[2])
    return Small(words[0], words[1], regions, shards) if words[3] == regions else None


def _plausible(entry: Small, page: int) -> bool:
    size, slab, count, shards = entry
    return 0 < size <= slab <= 64 << page and slab % (1 << page) == 0 and 0 < count <= slab // size and 1 <= shards <= 64 and size % 8 == 0


def _sizes(first: Sequence[int]) -> Iterator[int]:
    """sc_data_init (sc.c): tiny classes, four multiples of the quantum, then four per doubling."""
    quantum = first[2] - first[1]
    size = first[0]
    while size < quantum:
        yield size
        size *= 2
    for multiple in range(1, 5):
        yield multiple * quantum
    base = 4 * quantum
    while base <= LARGEST:
        for step in range(1, 5):
            if base + step * base // 4 <= LARGEST:
                yield base + step * base // 4
        base *= 2
