"""Find the pointers that mimalloc moved inside their blocks for alignment.

For an alignment above 16, mimalloc takes a block that is larger by the alignment, and moves the
pointer inside it (src/alloc-aligned.c). It sets a flag of the page (`has_aligned`), but records
neither the block nor the distance. malloc_usable_size gets the moved pointer, and all references
point there. So findleaks decides for each block in use of such a page:

1. If its first word is neither 0 nor a free-list link (the address of another block of the page),
   the pointer was not moved. No user writes the bytes before a moved pointer, so the word there is
   still an old link, or was cleared.
2. If a live word refers to the bytes before the first possible place, the pointer was not moved. A
   word of another doubtful block, before the first possible place there, is used only after that
   block's pointer is found not to be moved. This finds the nodes of a list, from its head on.
3. Otherwise the pointer is at the lowest possible place that a live word refers to. Possible places
   are the multiples of powers of two, from 32 to the block's size.
4. If no live word refers to the block, and its first word is a link, the pointer is assumed to be
   at the first possible place, so that the link is not a reference. If its first word is 0, the
   pointer is assumed not to be moved."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Optional

from findleaks.allocators.mimalloc.layout import SMALLEST_ALIGNMENT, MimallocPage
from findleaks.allocators.mimalloc.lists import decode
from findleaks.allocators.search import find_words_between
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target

UNINITIALISED = 0xD0D0D0D0D0D0D0D0  # MI_DEBUG_UNINIT: debug builds fill new blocks with it
# words at the start of a block, before the first place, to which references are searched for
WORDS_BELOW = 64
MAX_STARTS = 64  # references that are kept for each place in a block
ROUNDS = 4  # maximum number of rounds of `_decide`


class Live:
    """The blocks in use of some pages. Only words of these blocks count as references. `free` finds
    the other blocks of a page."""

    def __init__(self, pages: Sequence[MimallocPage], free: Callable[[MimallocPage], set[int]]) -> None:
        self.pages = pages
        self._starts = [page.start for page in pages]
        self._free = free
        self._known: dict[int, set[int]] = {}

    def free(self, page: MimallocPage) -> set[int]:
        """Return the blocks of a page that are not in use."""
        known = self._known.get(page.meta)
        if known is None:
            known = self._known[page.meta] = self._free(page)
        return known

    def page(self, address: int) -> Optional[MimallocPage]:
        """Return the page with a block around `address`, or None."""
        index = bisect_right(self._starts, address) - 1
        return self.pages[index] if index >= 0 and address < self.pages[index].end else None

    def block(self, address: int) -> int:
        """Return the block in use around `address`, or 0."""
        page = self.page(address)
        if page is None:
            return 0
        block = page.start + (address - page.start) // page.size * page.size
        return 0 if block in self.free(page) else block


def find_moved(
    target: Target, engine: Engine, live: Live, roots: Iterable[Range], heaps: Iterable[Range], registers: Iterable[int], everywhere: bool
) -> dict[int, int]:
    """Return, for each block whose pointer was moved, the address to which it was moved.

    With `everywhere`, pages without the flag are examined, too. `heaps`, `roots` and `registers`
    are searched for references."""
    suspects: dict[int, Suspect] = {}
    where: dict[int, list[int]] = {}
    for page in (page for page in live.pages if page.aligned or everywhere):
        for block, link in _find_suspects(target, page, live.free(page)):
            spots = _list_spots(block, page.size)
            if spots:
                suspects[block] = Suspect(spots, link and page.aligned)
                for spot in (*range(block, min(spots[0], block + 8 * WORDS_BELOW), 8), *spots):
                    where.setdefault(spot, []).append(block)
    if not suspects:
        return {}
    for value in registers:
        for block in where.get(value, ()):
            suspects[block].refer(value, 0)
    low, high = min(where), max(where) + 1
    for ranges, heap in ((roots, False), (heaps, True)):
        for at, value in find_words_between(target, engine, ranges, low, high):
            if value in where and (not heap or live.block(at)):
                for block in where[value]:
                    suspects[block].refer(value, at if heap else 0)
    return _decide(suspects, live)


def _decide(suspects: dict[int, Suspect], live: Live) -> dict[int, int]:
    """Return {block: place} of the moved pointers.

    Which places are likely depends on which words count, and which words count depends on the
    places. At first, all pointers are assumed to be moved, and words before them do not count. When
    a pointer is found not to be moved, all words of its block count. This is repeated a few
    times."""
    around = {at: live.block(at) for suspect in suspects.values() for at in suspect.words() if at}
    plain: set[int] = set()
    for block, suspect in suspects.items():
        suspect.settle(lambda spot, at, block=block: around.get(at) != block or at >= spot)  # type: ignore[misc]
        suspect.all = suspect.hits
    for _ in range(ROUNDS):
        plain = _find_plain(suspects, around)
        spots = {block: suspect.spot for block, suspect in suspects.items() if block not in plain}
        for suspect in suspects.values():
            suspect.settle(lambda _, at, spots=spots: at >= spots.get(around.get(at, 0), 0))  # type: ignore[misc]
        if all(suspects[block].spot == spot for block, spot in spots.items()):
            break
    return {block: s.spot for block, s in suspects.items() if block not in plain and (s.hits or s.link)}


def _find_plain(suspects: dict[int, Suspect], around: dict[int, int]) -> set[int]:
    """Return the suspects whose pointer was not moved."""
    after: dict[int, list[int]] = {}  # others that words before its pointer refer to
    plain: set[int] = set()
    ready = []
    for block, suspect in suspects.items():
        for at in suspect.starts:
            holder = around.get(at, 0)
            if holder not in suspects or at >= suspects[holder].spot:
                ready.append(block)
                break
            if holder != block:
                after.setdefault(holder, []).append(block)
    while ready:
        block = ready.pop()
        if block not in plain:
            plain.add(block)
            ready += after.get(block, ())
    return plain


class Suspect:
    """A block whose pointer may have been moved to one of the places `spots`. `spot` is the
    likeliest place.

    - link: whether its first word is not 0
    - starts: addresses of words that refer to its bytes before the first place (0: not in a heap)
    - all: addresses of words, by the place that they refer to
    - hits: those of `all` that count"""

    __slots__ = ("all", "hits", "link", "spot", "spots", "starts")

    def __init__(self, spots: list[int], link: bool) -> None:
        self.spots, self.link = spots, link
        self.starts: list[int] = []
        self.all: dict[int, list[int]] = {}
        self.hits = self.all
        self.spot = spots[0]

    def refer(self, value: int, at: int) -> None:
        """Add the word at `at`, which refers to `value`: a place, or an address below the first
        place."""
        words = self.all.setdefault(value, []) if value in self.spots else self.starts
        if len(words) < MAX_STARTS:
            words.append(at)

    def words(self) -> list[int]:
        """Return all words that refer to the block."""
        return [*self.starts, *(at for words in self.all.values() for at in words)]

    def settle(self, counts: Callable[[int, int], bool]) -> None:
        """Set `hits` to the words of `all` for which counts(spot, word) is true."""
        kept = {spot: [at for at in words if counts(spot, at)] for spot, words in self.all.items()}
        self.hits = {spot: words for spot, words in kept.items() if words}
        self.spot = min(self.hits, default=self.spots[0])


def _list_spots(block: int, size: int) -> list[int]:
    """Return the places to which an alignment could have moved the pointer, ascending."""
    found: list[int] = []
    alignment = SMALLEST_ALIGNMENT
    while alignment <= size:
        spot = -(-block // alignment) * alignment
        if spot != block and spot < block + size and (not found or spot != found[-1]):
            found.append(spot)
        alignment *= 2
    return found


def _find_suspects(target: Target, page: MimallocPage, free: set[int]) -> list[tuple[int, bool]]:
    """Return (block, whether its first word is not 0) for the blocks in use whose first word may be
    a link."""
    found = []
    for piece in target.pieces(page.start, page.end):
        skip = (page.start - piece.address) % page.size
        for at in range(skip, len(piece.data) - 7, page.size):
            block = piece.address + at
            if block in free:
                continue
            word = int.from_bytes(piece.data[at : at + 8], "little")
            if word and any(page.keys):
                word = 0 if word == UNINITIALISED else decode(word, page.keys, page.meta)
            if not word or (page.start <= word < page.end and not (word - page.start) % page.size and word != block):
                found.append((block, bool(word)))
    return found
