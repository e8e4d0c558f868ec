"""The free lists of mimalloc's pages: `free`, `local_free`, and `xthread_free` of other threads.

A link is in the first word of a block. A page with keys encodes it (mi_ptr_decode in
mimalloc/internal.h), with the address of its descriptor as the null link. Links never leave their
page."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.mimalloc.layout import MimallocPage
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.target.base import Range, Target

MASK = (1 << 64) - 1
WINDOW = 64 << 20  # bytes of pages that are read together
MAX_PAGE_BLOCKS = 1 << 16  # the largest number of blocks in a page: `reserved` has 16 bits

LISTS = ("free", "local_free", "xthread_free")


def decode(word: int, keys: tuple[int, int], null: int) -> int:
    """Decode a link; 0 for the null link. mi_ptr_decode subtracts the first key, rotates right by
    the low 6 bits of the first key, and XORs with the second key."""
    value = (word - keys[0]) & MASK
    turn = keys[0] & 63
    value = ((value >> turn) | (value << (64 - turn))) & MASK if turn else value
    value ^= keys[1]
    return 0 if value == null else value


def encode(pointer: int, keys: tuple[int, int], null: int) -> int:
    """Encode a pointer as a link (mi_ptr_encode), the inverse of `decode`."""
    value = (pointer or null) ^ keys[1]
    turn = keys[0] & 63
    value = ((value << turn) | (value >> (64 - turn))) & MASK if turn else value
    return (value + keys[0]) & MASK


class FreeLists:
    """The free blocks of pages.

    `free` are the blocks on the two lists of the owner. `remote` are blocks that other threads
    freed and the owner has not collected, so their page counts them as used. `counts` has the
    numbers (free, remote) by the address of the page's descriptor."""

    def __init__(self, target: Target, engine: Engine, problems: list[Problem]) -> None:
        self.free: array[int] = array("Q")
        self.remote: array[int] = array("Q")
        self.counts: dict[int, tuple[int, int]] = {}
        self.cut: set[int] = set()  # descriptors of pages with a list that ended early
        self._target = target
        self._memory = Memory(target)
        self._engine = engine
        self._problems = problems

    def read(self, pages: Sequence[MimallocPage]) -> None:
        """Follow the lists of these pages, which ascend. Raises Interrupted."""
        for group in _group_pages([page for page in pages if page.free or page.local or page.thread]):
            if self._target.is_interrupted():
                raise Interrupted
            if any(group[0].keys):
                for page in group:
                    self._note(page, *(self._follow_encoded(page, number) for number in range(3)))
                continue
            pieces = tuple(self._target.pieces(group[0].start, max(page.end for page in group)))
            heads = [head for page in group for head in (page.free, page.local, page.thread)]
            lists = self._engine.follow_all(pieces, heads, 0, MAX_PAGE_BLOCKS)
            ends, nodes = lists.ends, lists.nodes
            astray = dict(lists.problems)
            at = 0
            for number, page in enumerate(group):
                found = []
                for which in range(3):
                    end, why = ends[3 * number + which], astray.get(3 * number + which, "")
                    found.append(self._inside(page, which, nodes[at:end], why))
                    at = end
                self._note(page, *found)

    def _note(self, page: MimallocPage, free: array[int], local: array[int], remote: array[int]) -> None:
        """Add the blocks of one page's three lists."""
        self.free += free
        self.free += local
        self.remote += remote
        self.counts[page.meta] = (len(free) + len(local), len(remote))

    def _inside(self, page: MimallocPage, which: int, nodes: array[int], why: str) -> array[int]:
        """Return the blocks before the first one that is outside the page. `why` is "", or the
        reason why the list ended early."""
        if nodes and not (page.start <= min(nodes) and max(nodes) < page.end):
            number = next(number for number, node in enumerate(nodes) if not page.start <= node < page.end)
            why = f"{nodes[number]:#x} is not in the page"
            nodes = nodes[:number]
        if why:
            self._astray(page, which, nodes, why)
        return nodes

    def _astray(self, page: MimallocPage, which: int, nodes: array[int], why: str) -> None:
        """Report a list that ended early. Either the link in its last block is wrong, or the head
        in the page, or a block was freed twice and the list has a cycle."""
        self.cut.add(page.meta)
        place = Range(page.meta, page.meta)
        if nodes:
            link = self._memory.word(nodes[-1]) or 0
            link = decode(link, page.keys, page.meta) if any(page.keys) else link
            place = Range(link, link) if link in nodes else Range(nodes[-1], nodes[-1] + 8)
            why += ": it was freed twice, or a link was overwritten" if link in nodes else ""
        what = why if " after " in why else f"{why}, after {len(nodes)} blocks"
        of = f"{LISTS[which]} of the page at {page.start:#x} ({page.size} bytes a block)"
        self._problems.append(Problem(place.start, f"{of} is corrupt: {what}; the rest counts as in use", damaged=place))

    def _follow_encoded(self, page: MimallocPage, which: int) -> array[int]:
        """Follow a list of a page with keys."""
        found: array[int] = array("Q")
        node = (page.free, page.local, page.thread)[which]
        seen = set()
        while node:
            why = ""
            if not page.start <= node < page.end or (node - page.start) % page.size:
                why = f"{node:#x} is not a block of the page"
            elif node in seen:
                why = f"it has a cycle at {node:#x}"
            word = self._memory.word(node) if not why else None
            if word is None:
                why = why or f"{node:#x} cannot be read"
                self._astray(page, which, found, why)
                break
            seen.add(node)
            found.append(node)
            node = decode(word, page.keys, page.meta)
        return found


def _group_pages(pages: Sequence[MimallocPage]) -> Iterator[list[MimallocPage]]:
    """Yield groups of neighbouring pages that span at most WINDOW bytes. Either all pages of a
    group have keys, or none."""
    group: list[MimallocPage] = []
    for page in pages:
        if group and (page.end - group[0].start > WINDOW or any(page.keys) != any(group[0].keys)):
            yield group
            group = []
        group.append(page)
    if group:
        yield group
