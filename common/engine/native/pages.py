"""Heaps page by page in the C engine (common/native/pages.c)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import POINTER, c_uint64
from typing import Any

from findleaks.engine.native.library import CLibrary, Handle
from findleaks.engine.native.memory import Buffer, CRange, c_array, c_piece, c_ranges, zeros
from findleaks.engine.pages import COLUMNS, PageLists, PageRead, PageState, count_pages
from findleaks.target.base import Piece, Range


def by_page(library: CLibrary, blocks: Handle, ranges: array[int], page: int, lists: PageLists) -> PageRead:
    """See contract.Blocks.by_page."""
    count = count_pages(ranges, page)
    read = PageRead(bytearray(count), bytearray(count), zeros("I", count), zeros("I", count), [])
    sums = zeros("Q", len(PageState) * COLUMNS)
    if count:
        four: Any = POINTER(c_uint64) * 4
        counts = (c_uint64 * 4)(*(len(words) // 2 for words in lists))
        out: tuple[Buffer, ...] = (read.states, read.shares, read.used, read.sizes, sums)
        heads = four(*map(c_array, lists))
        library.fl_pages(blocks, c_array(ranges), len(ranges) // 2, page.bit_length() - 1, heads, counts, *map(c_array, out))
    return read._replace(sums=sums.tolist())


def free_runs(library: CLibrary, blocks: Handle, where: Range, least: int) -> array[int]:
    """See contract.Blocks.free_runs."""
    return library.words(library.fl_free_runs, blocks, CRange(*where), max(least, 0))


def page_words(
    library: CLibrary,
    blocks: Handle,
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
    library.fl_page_words(blocks, c_piece(piece), *c_ranges(types), CRange(*where), page.bit_length() - 1, *map(c_array, into))
