"""Heaps page by page in the C kernel (common/kernel/pages.c)."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import POINTER, byref, c_uint64
from typing import Any

from findleaks.engine.kernel.library import CRange, CWords, check, take_words
from findleaks.engine.kernel.memory import Buffer, c_array, c_piece
from findleaks.engine.pages import COLUMNS, PageLists, PageRead, PageState
from findleaks.target.base import Piece, Range


def by_page(library: ctypes.CDLL, blocks: int, where: Range, page: int, lists: PageLists) -> PageRead:
    """See contract.Blocks.by_page; `blocks` is the kernel's own."""
    count = max(0, -(-where.end // page) - where.start // page) if where.start < where.end else 0
    read = PageRead(bytearray(count), bytearray(count), array("I", bytes(4 * count)), array("I", bytes(4 * count)), [])
    sums = array("Q", bytes(8 * len(PageState) * COLUMNS))
    if count:
        four: Any = POINTER(c_uint64) * 4
        counts = (c_uint64 * 4)(*(len(words) // 2 for words in lists))
        out: tuple[Buffer, ...] = (read.states, read.shares, read.used, read.sizes, sums)
        heads = four(*map(c_array, lists))
        library.fl_pages(blocks, CRange(where.start, where.end), page.bit_length() - 1, heads, counts, *map(c_array, out))
    return read._replace(sums=sums.tolist())


def free_runs(library: ctypes.CDLL, blocks: int, where: Range, least: int) -> array[int]:
    """See contract.Blocks.free_runs."""
    words = CWords()
    code = library.fl_free_runs(blocks, CRange(where.start, where.end), max(least, 0), byref(words))
    found = take_words(library, words)
    check(code, "free runs")
    return found


def page_words(
    library: ctypes.CDLL,
    blocks: int,
    piece: Piece,
    types: Sequence[Range],
    where: Range,
    page: int,
    into: tuple[array[int], array[int]],
) -> None:
    """See contract.Blocks.page_words; `into`: found and weights."""
    if where.start >= where.end:
        return
    count = -(-where.end // page) - where.start // page
    if any(len(words) < count for words in into):
        raise ValueError(f"{count} pages, only {min(map(len, into))}")
    ranges = (CRange * len(types))(*(CRange(start, end) for start, end in types))
    within = CRange(where.start, where.end)
    library.fl_page_words(blocks, c_piece(piece), ranges, len(types), within, page.bit_length() - 1, *map(c_array, into))
