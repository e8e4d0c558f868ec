"""Read Ruby's heap pages once, check them by their headers, and pass them to the engine, which
groups their slots."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional, Union

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.errors import UnreadableMemory
from findleaks.runtimes.ruby.layout import BEFORE_SWEEP, IN_TOMB, NEWEST_PAGE, Layout, slots
from findleaks.target.base import Piece, Range, Target
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import merge_ranges

NAMED = 3  # damaged pages that are reported individually
LOOK = 1024  # pages between two checks for the user's interrupt


class Page(NamedTuple):
    """A page at `body`: `number` slots of `size` bytes from `start`. `header`: the address of the
    page's struct heap_page."""

    body: int
    header: int
    start: int
    size: int
    number: int
    tomb: bool
    unswept: bool


class Pages:
    """All readable pages, ascending by address. `problems` describes the others."""

    def __init__(self, target: Target, layout: Layout, problems: list[Problem]) -> None:
        self.target, self.layout, self._problems = target, layout, problems
        self._bad: list[tuple[int, str]] = []
        self._memory = Memory(target)
        self.all = self._read()
        self._bodies = [page.body for page in self.all]
        self._report()

    def ranges(self) -> list[Range]:
        """The pages' ranges, adjacent ones merged."""
        return merge_ranges(Range(page.body, page.body + self.layout.page) for page in self.all)

    def inside(self, blocks: Blocks) -> list[Range]:
        """Return the parts of pages that are in an allocator's blocks. Before 3.1, a page's block
        is some words smaller than the page, and the next block begins in the same page."""
        found = ((page.body, blocks.lookup(page.body)) for page in self.all)
        return [Range(body, min(body + self.layout.page, one[1] + one[2])) for body, one in found if one is not None]

    def behind(self, inside: Sequence[Range]) -> list[Range]:
        """Return the part of each page after the end of the page's block. `inside`: the result of
        the method `inside`."""
        return [Range(end, start + self.layout.page) for start, end in inside if end < start + self.layout.page]

    def at(self, address: int) -> Optional[Page]:
        """Return the page that contains this address."""
        at = bisect_right(self._bodies, address) - 1
        return self.all[at] if at >= 0 and address < self._bodies[at] + self.layout.page else None

    def slot(self, address: int) -> Optional[tuple[int, int]]:
        """Return start and size of the slot that contains this address."""
        page = self.at(address)
        if page is None or not page.start <= address < page.start + page.size * page.number:
            return None
        return address - (address - page.start) % page.size, page.size

    def pieces(self) -> Iterator[tuple[Piece, Sequence[Page]]]:
        """Yield all pages' memory, with the pages that are complete in each piece. Raises
        Interrupted."""
        at = 0
        pieces = (piece for start, end in self.ranges() for piece in self.target.pieces(start, end))
        for piece in interruptible(self.target, pieces):
            low, high = piece.address, piece.address + len(piece.data)
            first = bisect_left(self._bodies, low)
            # Read individually the pages that begin in an earlier piece, or are missing.
            yield from self._alone(self.all[at:first])
            at = max(first, bisect_right(self._bodies, high - self.layout.page))
            if at > first:
                yield piece, self.all[first:at]
        yield from self._alone(self.all[at:])

    def _alone(self, pages: Sequence[Page]) -> Iterator[tuple[Piece, Sequence[Page]]]:
        for page in pages:
            try:
                data = bytearray(self.target.read(page.body, self.layout.page))
            except UnreadableMemory:
                what = f"Ruby's heap page at {page.body:#x} cannot be read: its slots are not counted"
                self._problems.append(Problem(page.body, what, False))
                continue
            yield Piece(page.body, memoryview(data)), [page]

    def _read(self) -> list[Page]:
        """Return the pages in the sorted array, at most as many as fit into the target's memory."""
        count, where = self.layout.pages, self._memory.word(self.layout.sorted) if self.layout.sorted else None
        if not where or not count:
            return []
        capacity = sum(region.size for region in self.target.regions() if region.readable and region.writable)
        if count * self.layout.page > capacity:
            self._problems.append(Problem(self.layout.sorted + 8, f"Ruby's heap counts {count} pages, more than fit into memory"))
            count = capacity // self.layout.page
        where += self.layout.fields.first
        found: dict[int, Page] = {}
        for first in interruptible(self.target, range(0, count, LOOK)):
            headers = self._memory.words(where + 8 * first, min(LOOK, count - first))
            if headers is None:
                self._problems.append(Problem(where + 8 * first, f"Ruby's array of pages cannot be read at {where + 8 * first:#x}"))
                break
            for header in headers:
                page = self._page(header)
                if page is None:
                    continue
                if isinstance(page, Page) and found.setdefault(page.body, page) is not page:
                    page = "is listed twice"
                if isinstance(page, str):
                    self._bad.append((header, page))
        return [found[body] for body in sorted(found)]

    def _page(self, header: int) -> Union[Page, str, None]:
        """Return the page that a struct heap_page at this address describes; None if the page has
        no objects. If the struct is not valid, return the reason as a string."""
        fields = self.layout.fields
        words = self._memory.words(header, fields.start // 8 + 1) if header % 8 == 0 else None
        if words is None:
            return "cannot be read"
        start = words[fields.start // 8]
        if not start and fields is NEWEST_PAGE and not words[0] & 0xFFFFFFFF:
            return None
        body = start & -self.layout.page
        size, count = slots(self._memory, header, fields)
        if not size or start % 8 or start + size * count > body + self.layout.page or start < body + 8:
            return f"has {count} slots of {size} bytes at {start:#x}, which is not a page"
        if self._memory.word(body) != header:
            return f"and its page at {body:#x} do not point to each other"
        flags = words[fields.flags // 8] >> 8 * (fields.flags % 8)
        return Page(body, header, start, size, count, bool(flags & IN_TOMB), bool(flags & BEFORE_SWEEP))

    def _report(self) -> None:
        for header, why in self._bad[:NAMED]:
            self._problems.append(Problem(header, f"Ruby's heap page {header:#x} {why}: ignored"))
        if len(self._bad) > NAMED:
            self._problems.append(Problem(self._bad[NAMED][0], f"{len(self._bad) - NAMED} more pages of Ruby's heap are also ignored"))


def runs(pages: Sequence[Page]) -> array[int]:
    """Return the pages' slots in the format of `Records.read` ("Q"). The mark of each run is the
    size of its slots."""
    return array("Q", (word for page in pages for word in (page.start, page.size, page.number, page.size << 32)))
