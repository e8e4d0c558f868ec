"""Where blocks of larger alignment really begin.

mimalloc gives out a larger alignment than 16 by taking a block that is larger by the alignment and moving the pointer inside it
(src/alloc-aligned.c); the page is flagged (`has_aligned`), but nothing says which blocks, nor by how much. malloc_usable_size is told
the moved pointer, and all references go there. So, in flagged pages only, for each block in use:

1. The bytes before a moved pointer are nobody's: the block's first word still is the link it had on the free list (0, or the block
   after it in the page), or 0 where the block was cleared. Any other first word: the pointer was not moved.
2. If anything live but other blocks' first words refers to the block's start, the pointer was not moved.
3. Else, of the addresses that some power of two (32 and more, at most the block's size) would move it to, the lowest that
   anything live refers to is it.
4. Else the block is left where mimalloc has it: nothing refers to its beginning, so that nothing depends on it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Optional

from findleaks.allocators.mimalloc.layout import SMALLEST_ALIGNMENT, Page
from findleaks.allocators.mimalloc.lists import decode
from findleaks.errors import Interrupted
from findleaks.graph.base import Engine
from findleaks.target.base import Range, Target

UNINITIALISED = 0xD0D0D0D0D0D0D0D0
"""MI_DEBUG_UNINIT, which debug builds fill new blocks with."""


class Live:
    """Tells whether a word of the heaps belongs to a block in use: only such a reference counts. `free` tells a page's free blocks."""

    def __init__(self, pages: Sequence[Page], free: Callable[[Page], set[int]]) -> None:
        self.pages = pages
        self._starts = [page.start for page in pages]
        self._free = free
        self._known: dict[int, set[int]] = {}

    def free(self, page: Page) -> set[int]:
        """The page's blocks that are not in use."""
        known = self._known.get(page.meta)
        if known is None:
            known = self._known[page.meta] = self._free(page)
        return known

    def page(self, address: int) -> Optional[Page]:
        """The page that has a block around `address`."""
        index = bisect_right(self._starts, address) - 1
        return self.pages[index] if index >= 0 and address < self.pages[index].end else None

    def block(self, address: int) -> int:
        """The block in use around `address`, or 0."""
        page = self.page(address)
        if page is None:
            return 0
        block = page.start + (address - page.start) // page.size * page.size
        return 0 if block in self.free(page) else block


def moved(
    target: Target, engine: Engine, live: Live, roots: Iterable[Range], heaps: Iterable[Range], registers: Iterable[int]
) -> dict[int, int]:
    """Block -> where its user's pointer is, for blocks in use whose pointer was moved."""
    suspects: dict[int, Page] = {}
    where: dict[int, list[int]] = {}
    for page in (page for page in live.pages if page.aligned):
        for block in _suspects(target, page, live.free(page)):
            spots = _spots(block, page.size)
            if spots:
                suspects[block] = page
                for spot in (block, *spots):
                    where.setdefault(spot, []).append(block)
    if not suspects:
        return {}
    starts: set[int] = set()
    hits: dict[int, int] = {}

    def refer(value: int, at: int) -> None:
        for block in where[value]:
            if value != block:
                hits[block] = min(hits.get(block, value), value)
            elif not _is_link(at, suspects[block]):
                starts.add(block)

    low, high = min(where), max(where) + 1
    for value in registers:
        if value in where:
            refer(value, 0)
    for start, end, heap in [*((*root, False) for root in roots), *((*heap, True) for heap in heaps)]:
        for piece in target.pieces(start, end):
            if target.interrupted():
                raise Interrupted
            found = engine.search(piece, low, high)
            if not found:
                continue
            skip = -piece.address % 8
            words = piece.data[skip : skip + (len(piece.data) - skip) // 8 * 8].cast("Q")
            base = piece.address + skip
            for at in found:
                value = words[(at - base) >> 3]
                if value in where and (not heap or live.block(at)):
                    refer(value, at)
    return {block: spot for block, spot in hits.items() if block not in starts}


def _is_link(at: int, page: Page) -> bool:
    """Whether the word at `at` is the first of a block of this page: it may be a link left over."""
    return page.start <= at < page.end and not (at - page.start) % page.size


def _spots(block: int, size: int) -> list[int]:
    """Where an alignment could have moved the pointer to, ascending."""
    found = []
    alignment = SMALLEST_ALIGNMENT
    while alignment <= size:
        spot = -(-block // alignment) * alignment
        if spot != block and spot < block + size and (not found or spot != found[-1]):
            found.append(spot)
        alignment *= 2
    return found


def _suspects(target: Target, page: Page, free: set[int]) -> list[int]:
    """Blocks in use of this page whose first word may be a link left over from the free list."""
    found = []
    for piece in target.pieces(page.start, page.end):
        skip = (page.start - piece.address) % page.size
        for at in range(skip, len(piece.data) - 7, page.size):
            block = piece.address + at
            if block in free:
                continue
            word = int.from_bytes(piece.data[at : at + 8], "little")
            if word and any(page.keys):
                if word == UNINITIALISED:
                    word = 0
                else:
                    word = decode(word, page.keys, page.meta)
            if not word or (page.start <= word < page.end and not (word - page.start) % page.size):
                found.append(block)
    return found
