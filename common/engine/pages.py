"""Heaps page by page: what both engines take and return."""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import NamedTuple


class PageState(IntEnum):
    """State of a page of a heap. *Held* means in memory or swapped. A page with any byte in use is
    IN_USE or UNTOUCHED; of the others, one with cached blocks is CACHED, one with metadata
    METADATA; the rest is free."""

    UNKNOWN = 0  # hidden by corruption, absent from the target, or foreign memory between blocks
    IN_USE = 1  # held, or residency is unknown
    UNTOUCHED = 2  # in use, and known not to be held: allocated and never written to
    CACHED = 3  # nothing in use, freed blocks in thread caches
    METADATA = 4  # the allocator's own, with free bytes at most
    KEPT = 5  # free, and held: kept by the allocator
    # nothing in use, and known not to be held: returned to the kernel, or never touched
    RETURNED = 6
    FREE = 7  # free; residency is unknown


FOREIGN = 4
COLUMNS = 5
"""Columns of PageRead.sums: the four states of blocks (FREE includes memory in no block), then
FOREIGN."""


LARGEST = 0xFFFFFFFF
"""In PageRead.sizes: a size that does not fit 32 bits."""


class PageLists(NamedTuple):
    """Flat sorted arrays ("Q") of disjoint ranges: memory of `known` residency, what of it is
    `held`, and `metadata` and `foreign` memory of a heap beside its blocks."""

    known: array[int]
    held: array[int]
    metadata: array[int]
    foreign: array[int]


class PageRead(NamedTuple):
    """By page: `states` (PageState), `shares` (bytes in use, 0 none, 1 … 255 all), `used` ("I",
    these bytes exactly), `sizes` ("I", usable size of the blocks that take more than half of the
    page's bytes in use, else cached, else free; some block's size if none does; 0 without blocks;
    at most LARGEST). `sums` are bytes by page state and column: sums[state * COLUMNS + column]."""

    states: bytearray
    shares: bytearray
    used: array[int]
    sizes: array[int]
    sums: list[int]
