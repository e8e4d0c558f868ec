"""Heaps page by page: what both engines take and return."""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import NamedTuple


class PageState(IntEnum):
    """*Held*: in memory or swapped. A page with any byte in use is IN_USE or UNTOUCHED; of the
    others, one with cached blocks is CACHED, one with metadata METADATA; the rest is free."""

    UNKNOWN = 0  # hidden by corruption, absent from the target, or foreign memory between blocks
    IN_USE = 1  # held, or residency is unknown
    UNTOUCHED = 2  # in use, and known not to be held: allocated and never written to
    CACHED = 3  # nothing in use, freed blocks in thread caches
    METADATA = 4  # the allocator's own, with free bytes at most
    KEPT = 5  # free, and held: kept by the allocator
    RETURNED = 6  # free, known not held: returned to the kernel, or never touched
    FREE = 7  # free; residency is unknown


FOREIGN = 4
COLUMNS = 5  # of PageRead.sums: states of blocks (FREE with memory in no block), FOREIGN


LARGEST = 0xFFFFFFFF  # in PageRead.sizes: a size beyond 32 bits


class PageLists(NamedTuple):
    """Flat sorted arrays ("Q") of disjoint ranges: memory of `known` residency, what of it is
    `held`, and the `metadata` and `foreign` memory beside a heap's blocks."""

    known: array[int]
    held: array[int]
    metadata: array[int]
    foreign: array[int]


class PageRead(NamedTuple):
    """By page: `states` (PageState); `used` ("I"), bytes in use, and `shares`, the same as 0 none,
    1 … 255 all; `sizes` ("I"), usable size of the blocks that take more than half of the bytes in
    use, else cached, else free, or of some block (0: no blocks; at most LARGEST). `sums`: bytes,
    sums[state * COLUMNS + column]."""

    states: bytearray
    shares: bytearray
    used: array[int]
    sizes: array[int]
    sums: list[int]
