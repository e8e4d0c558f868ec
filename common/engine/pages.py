"""Heaps page by page: arguments and results of both engines."""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import NamedTuple


class PageState(IntEnum):
    """State of a page; a page is *held* if it is in memory or swapped.

    A page with any byte in use is IN_USE or UNTOUCHED. Of the others, a page with cached blocks is
    CACHED, and a page with metadata METADATA. The rest is free."""

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


class PageLists(NamedTuple):
    """Flat sorted arrays ("Q") of disjoint ranges: memory of `known` residency, the `held` part of
    it, and the `metadata` and `foreign` memory between a heap's blocks."""

    known: array[int]
    held: array[int]
    metadata: array[int]
    foreign: array[int]


class PageRead(NamedTuple):
    """Result by page.

    `states` are PageStates. `used` ("I") is bytes in use; `shares` is the same in one byte, from 0
    for none to 255 for all. `sizes` ("I") is the usable size of the blocks that make up more than
    half of the bytes in use, else of the cached bytes, else of the free bytes; or of any block (0:
    no blocks; at most LARGEST). `sums` is bytes: sums[state * COLUMNS + column]."""

    states: bytearray
    shares: bytearray
    used: array[int]
    sizes: array[int]
    sums: list[int]
