"""Heaps page by page: arguments and results of both engines."""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import NamedTuple


class PageState(IntEnum):
    """State of a page. A page is *held* if it is in memory or swapped.

    A page with any byte in use is IN_USE or UNTOUCHED. Other pages are CACHED if they have bytes of
    cached blocks, otherwise METADATA if they have allocator metadata. The remaining pages are
    free."""

    UNKNOWN = 0  # hidden by corruption, absent from the target, or foreign memory between blocks
    IN_USE = 1  # held, or residency is unknown
    UNTOUCHED = 2  # in use, and known not to be held: allocated and never written
    CACHED = 3  # nothing in use, free blocks in thread caches
    METADATA = 4  # allocator metadata, and otherwise only free bytes
    KEPT = 5  # free, held: not returned to the kernel
    RETURNED = 6  # free, known not to be held: returned to the kernel, or never touched
    FREE = 7  # free; residency is unknown


FOREIGN = 4
COLUMNS = 5  # of PageRead.sums: states of blocks (FREE includes memory in no block), FOREIGN


LARGEST = 0xFFFFFFFF  # in PageRead.sizes: a size that does not fit 32 bits


def count_pages(ranges: array[int], page: int) -> int:
    """Return the number of pages of ranges (starts and ends, "Q"). A page counts in each range that
    overlaps it."""
    return sum(-(-end // page) - start // page for start, end in zip(ranges[::2], ranges[1::2]) if start < end)


class PageLists(NamedTuple):
    """Flat sorted arrays ("Q") of disjoint ranges: the memory whose residency is `known`, the part
    of it that is `held`, the `metadata`, and the `foreign` memory between the blocks of a heap."""

    known: array[int]
    held: array[int]
    metadata: array[int]
    foreign: array[int]


class PageRead(NamedTuple):
    """Result by page.

    `states` are PageStates. `used` ("I") is the number of bytes in use. `shares` is the same number
    scaled to one byte, from 0 for none to 255 for all. `sizes` ("I") is the usable size of the
    blocks that make up more than half of the page's bytes in use. If no bytes are in use, cached
    bytes count instead; if no bytes are cached either, free bytes count. If no size has a majority,
    it is the size of any block of the page (0: no blocks; at most LARGEST). `sums` has numbers of
    bytes: sums[state * COLUMNS + column]."""

    states: bytearray
    shares: bytearray
    used: array[int]
    sizes: array[int]
    sums: list[int]
