"""Heaps page by page: what both engines take and return."""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import NamedTuple


class PageState(IntEnum):
    """What a page of a heap is. *Held* is in memory or in swap. A page with any byte in use is IN_USE or UNTOUCHED, whatever else it
    holds; one of cached and metadata bytes CACHED; the rest is free."""

    UNKNOWN = 0  # nobody's: hidden by corruption, absent from the target, or another's between the allocator's blocks
    IN_USE = 1  # held, or it is not known whether it is
    UNTOUCHED = 2  # in use, and known not to be held: allocated and never written to
    CACHED = 3  # nothing in use, freed blocks in thread caches
    METADATA = 4  # the allocator's own, and free bytes at most
    KEPT = 5  # free, and held: kept by the allocator
    RETURNED = 6  # nothing in use, and known not to be held: returned to the kernel, or never touched
    FREE = 7  # free; it is not known whether it is held


FOREIGN = 4
COLUMNS = 5
"""Columns of PageRead.sums: the four states of blocks (FREE with all that no block stands in), then FOREIGN."""


LARGEST = 0xFFFFFFFF
"""In PageRead.sizes: a size that does not fit 32 bits."""


class PageLists(NamedTuple):
    """Flat sorted arrays ("Q") of disjoint ranges: memory whose residency is `known`, what is `held`, and what of a heap is `metadata`
    or `foreign` beside its blocks."""

    known: array[int]
    held: array[int]
    metadata: array[int]
    foreign: array[int]


class PageRead(NamedTuple):
    """A byte a page each: `states` (PageState) and `shares` (bytes in use, 0 none, 1 … 255 all), which `used` ("I") has exactly. `sizes`
    ("I") is the usable size of the blocks that take more than half of a page's bytes in use (else cached, else free ones), some block's
    where none does, 0 without blocks, 2^32 - 1 for any larger. `sums` are bytes by page state and column: sums[state * COLUMNS + column].
    """

    states: bytearray
    shares: bytearray
    used: array[int]
    sizes: array[int]
    sums: list[int]
