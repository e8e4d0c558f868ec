"""Pointers that mimalloc moved inside their blocks for alignment, and how they are found.

For an alignment above 16, mimalloc takes a block larger by the alignment and moves the pointer
inside it (src/alloc-aligned.c). The page is flagged (`has_aligned`), but neither the block nor the
distance is recorded. malloc_usable_size gets the moved pointer, and all references point there. So,
for each block in use, and only in flagged pages:

1. The bytes before a moved pointer belong to no user: the first word is still a free-list link (0,
   or another block of the page), or cleared (0). With any other, the pointer was not moved.
2. Nor was it if anything live refers to the block from its start up to the first place where an
   alignment could have moved it to. References from the first words of such doubtful blocks, and
   from before a moved pointer, count only once the block that has them is itself found not to be
   moved: this finds the nodes of a list, from its head on.
3. Else the pointer is at the lowest of these places (powers of two from 32 to the block's size)
   that anything live refers to.
4. Else nothing refers to the block. If its first word is a link, the pointer is taken as moved to
   the first of these places, so that the link is no reference; if it is 0, as not moved."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Optional

from findleaks.allocators.mimalloc.layout import SMALLEST_ALIGNMENT, Page
from findleaks.allocators.mimalloc.lists import decode
from findleaks.allocators.search import words_between
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target

UNINITIALISED = 0xD0D0D0D0D0D0D0D0  # MI_DEBUG_UNINIT: debug builds fill new blocks with it
WORDS_BELOW = 64  # words of a block, below the first place, to which references are looked for
MAX_STARTS = 64  # references kept for each spot of a block
ROUNDS = 4  # of `_decided`, at most


class Live:
    """Blocks in use, whose words alone count as references; `free`: a page's other blocks."""

    def __init__(self, pages: Sequence[Page], free: Callable[[Page], set[int]]) -> None:
        self.pages = pages
        self._starts = [page.start for page in pages]
        self._free = free
        self._known: dict[int, set[int]] = {}

    def free(self, page: Page) -> set[int]:
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
    target: Target, engine: Engine, live: Live, roots: Iterable[Range], heaps: Iterable[Range], registers: Iterable[int], everywhere: bool
) -> dict[int, int]:
    """{block: where its user's pointer is} if moved; `everywhere`: in unflagged pages, too."""
    suspects: dict[int, Suspect] = {}
    where: dict[int, list[int]] = {}
    for page in (page for page in live.pages if page.aligned or everywhere):
        for block, link in _suspects(target, page, live.free(page)):
            spots = _spots(block, page.size)
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
        for at, value in words_between(target, engine, ranges, low, high):
            if value in where and (not heap or live.block(at)):
                for block in where[value]:
                    suspects[block].refer(value, at if heap else 0)
    return _decided(suspects, live)


def _decided(suspects: dict[int, Suspect], live: Live) -> dict[int, int]:
    """Where moved pointers are, by block. The pointers and the words that count depend on each
    other: first all suspects are taken as moved, and words before their pointers do not count; then
    words of those found not to be moved do; this is repeated a few times."""
    around = {at: live.block(at) for suspect in suspects.values() for at in suspect.words() if at}
    plain: set[int] = set()
    for block, suspect in suspects.items():
        suspect.settle(lambda spot, at, block=block: around.get(at) != block or at >= spot)  # type: ignore[misc]
        suspect.all = suspect.hits
    for _ in range(ROUNDS):
        plain = _plain(suspects, around)
        spots = {block: suspect.spot for block, suspect in suspects.items() if block not in plain}
        for suspect in suspects.values():
            suspect.settle(lambda _, at, spots=spots: at >= spots.get(around.get(at, 0), 0))  # type: ignore[misc]
        if all(suspects[block].spot == spot for block, spot in spots.items()):
            break
    return {block: s.spot for block, s in suspects.items() if block not in plain and (s.hits or s.link)}


def _plain(suspects: dict[int, Suspect], around: dict[int, int]) -> set[int]:
    """The suspects whose pointer was not moved."""
    after: dict[int, list[int]] = {}  # suspect -> others that words before its pointer refer to
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
    """A block whose pointer may have been moved to one of `spots`; `spot`: to which. `link`: its
    first word is not 0. `starts`: words (addresses in heaps, 0 elsewhere) that refer to its bytes
    before the first spot. `all`: words by the spot that they refer to; `hits`: those that count."""

    __slots__ = ("all", "hits", "link", "spot", "spots", "starts")

    def __init__(self, spots: list[int], link: bool) -> None:
        self.spots, self.link = spots, link
        self.starts: list[int] = []
        self.all: dict[int, list[int]] = {}
        self.hits = self.all
        self.spot = spots[0]

    def refer(self, value: int, at: int) -> None:
        """The word at `at` refers to `value`, a spot or an address below the first."""
        words = self.all.setdefault(value, []) if value in self.spots else self.starts
        if len(words) < MAX_STARTS:
            words.append(at)

    def words(self) -> list[int]:
        """All words that refer to the block."""
        return [*self.starts, *(at for words in self.all.values() for at in words)]

    def settle(self, counts: Callable[[int, int], bool]) -> None:
        """Keep the words in `hits` for which counts(spot, word)."""
        kept = {spot: [at for at in words if counts(spot, at)] for spot, words in self.all.items()}
        self.hits = {spot: words for spot, words in kept.items() if words}
        self.spot = min(self.hits, default=self.spots[0])


def _spots(block: int, size: int) -> list[int]:
    """Where an alignment could have moved the pointer to, ascending."""
    found: list[int] = []
    alignment = SMALLEST_ALIGNMENT
    while alignment <= size:
        spot = -(-block // alignment) * alignment
        if spot != block and spot < block + size and (not found or spot != found[-1]):
            found.append(spot)
        alignment *= 2
    return found


def _suspects(target: Target, page: Page, free: set[int]) -> list[tuple[int, bool]]:
    """(block, whether its first word is not 0) of blocks in use whose first word may be a link."""
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
