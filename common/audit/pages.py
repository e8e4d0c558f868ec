"""Classify the pages of heaps: in use, cached, free and not returned, or returned. Predict the
effect of returning pages.

Bytes include headers. Padding up to a granule counts with the block before it. If two heaps share a
page (one heap may lie in a block of the other), the page counts in both, with the bytes of each."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, Optional

from findleaks.allocators.base import Allocator, Heap
from findleaks.allocators.heap_parts import HeapPart
from findleaks.allocators.retention import ArenaUse, FreeMemory
from findleaks.engine.contract import Engine
from findleaks.engine.pages import COLUMNS, PageLists, PageState
from findleaks.engine.terms import State
from findleaks.session import Session
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges
from findleaks.target.residency.presence import Presence
from findleaks.target.runs import Runs

STEP = 256 << 20  # bytes of heap per call of the engine: about 50 ms if all blocks are small

PURE_STEP = 4 << 20
NONE: array[int] = array("Q")


class AreaPart(NamedTuple):
    """A contiguous part of an area."""

    start: int
    end: int
    first: int  # number of the page that contains `start`; the pages are [first, first + pages)
    pages: int


class PageRun(NamedTuple):
    """Adjacent pages in the same state. `used`: bytes in use in these pages."""

    address: int
    pages: int
    state: PageState
    used: int


@dataclass
class Area:
    """The heaps of one arena, divided into pages.

    `sums`: bytes by page state and column (engine/pages.py)."""

    allocator: Allocator
    arena: str
    page: int
    parts: list[AreaPart] = field(default_factory=list)
    states: bytearray = field(default_factory=bytearray)  # PageState of each page
    # For each page, the fraction that is in use, from 0 to 255.
    shares: bytearray = field(default_factory=bytearray)
    used: array[int] = field(default_factory=lambda: array("I"))  # bytes in use in each page
    # For each page, the number of bytes; see engine/pages.py.
    sizes: array[int] = field(default_factory=lambda: array("I"))
    sums: list[int] = field(default_factory=lambda: [0] * (len(PageState) * COLUMNS))
    resident: Optional[int] = 0
    swapped: int = 0
    _firsts: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the area: "glibc 2.36, arena 3"."""
        allocator = self.allocator.title
        return f"{allocator}, {self.arena}" if self.arena else allocator

    @property
    def size(self) -> int:
        """Mapped bytes of all parts."""
        return sum(part.end - part.start for part in self.parts)

    def bytes(self, state: PageState) -> int:
        """Return the bytes of the area's pages in this state."""
        return sum(self.sums[state * COLUMNS : (state + 1) * COLUMNS])

    def sum_state(self, state: int, *pages: PageState) -> int:
        """Return how many bytes of blocks in this state are on pages in the states `pages`
        (default: on all pages). `state`: engine.terms.State (FREE includes memory that is in no
        block) or engine.pages.FOREIGN."""
        return sum(self.sums[page * COLUMNS + state] for page in pages or PageState)

    def address(self, number: int) -> int:
        """Return the address of a page. If the area's part begins inside the page, return the start
        of the part."""
        part = self.part_of(number)
        return max(part.start, (part.start // self.page + number - part.first) * self.page)

    def part_of(self, number: int) -> AreaPart:
        """Return the part that contains this page."""
        if len(self._firsts) != len(self.parts):
            self._firsts = [part.first for part in self.parts]
        return self.parts[bisect_right(self._firsts, number) - 1]

    def runs(self) -> Iterator[PageRun]:
        """Yield runs of adjacent pages in the same state, ascending. A run ends at the end of a
        part."""
        for part in self.parts:
            for match in _ALIKE.finditer(self.states, part.first, part.first + part.pages):
                low, high = match.span()
                state = PageState(self.states[low])
                used = sum(self.used[low:high]) if state in _USED else 0
                yield PageRun(max(part.start, (part.start // self.page + low - part.first) * self.page), high - low, state, used)


@dataclass(frozen=True)
class PageMap:
    """All heaps of a process by page. `title`: the name of the process. `areas`: its heaps, those
    with the most resident bytes first. `page`: bytes of a page."""

    title: str
    areas: Sequence[Area]
    residency: Presence
    page: int

    def bytes(self, state: PageState) -> int:
        """Bytes of the pages in this state, in all areas."""
        return sum(area.bytes(state) for area in self.areas)

    @property
    def mapped(self) -> int:
        """Mapped bytes of all areas."""
        return sum(area.size for area in self.areas)

    @property
    def used(self) -> int:
        """Bytes in use, including headers, both resident and not resident."""
        return sum(area.sum_state(State.IN_USE) for area in self.areas)

    @property
    def resident(self) -> Optional[int]:
        """Resident bytes of all areas; None if unknown for any area."""
        known = [area.resident for area in self.areas]
        return None if None in known else sum(size for size in known if size is not None)


_USED = (PageState.IN_USE, PageState.UNTOUCHED)
_ALIKE = re.compile(rb"(.)\1*", re.DOTALL)


def read_areas(session: Session, residency: Presence, wanted: Callable[[Allocator], bool] = lambda allocator: True) -> list[Area]:
    """Return an area for each arena of the allocators for which `wanted` returns True, sorted by
    first address.
    Takes a few nanoseconds for each block, and 10 bytes for each page."""
    directory, page = session.directory, session.target.arch.page
    held = residency.resident.words
    if len(residency.swapped):
        held = Runs.of(merge_ranges([*residency.resident, *residency.swapped])).words
    found: dict[tuple[int, str], _Reader] = {}
    total = sum(owned.end - owned.start for owned in directory.heaps) or 1
    done = 0
    for owned in directory.heaps:
        if wanted(owned.allocator):
            key = id(owned.allocator), owned.heap.arena
            if key not in found:
                found[key] = _Reader(session, Area(owned.allocator, owned.heap.arena, page), residency.known.words, held, total)
            found[key].add(owned, done)
        done += owned.end - owned.start
    for reader in found.values():
        reader.read()
        _count_resident(session.engine, reader.area, residency)
    return [reader.area for reader in found.values()]


class _Reader:
    """Reads the pages of an area. The engine reads many parts of a heap in one call, because a heap
    may have a million slabs. `total`: bytes of all areas, for progress."""

    def __init__(self, session: Session, area: Area, known: array[int], held: array[int], total: int) -> None:
        self.area = area
        self._session, self._total = session, total
        self._step = PURE_STEP if session.engine.name == "pure" else STEP
        self._heap: Optional[Heap] = None
        self._lists = PageLists(known, held, NONE, NONE)
        self._ranges, self._waiting = array("Q"), 0  # ranges to read, and their bytes
        self._pages, self._done = 0, 0

    def add(self, part: HeapPart, done: int) -> None:
        """Add a part of a heap. `done`: bytes of the parts before it."""
        if part.heap is not self._heap:
            self.read()
            self._heap = part.heap
            self._lists = self._lists._replace(metadata=_list_words(part.heap.metadata), foreign=_list_words(part.heap.foreign))
        page, low = self.area.page, part.start
        pages = -(-part.end // page) - low // page
        self.area.parts.append(AreaPart(low, part.end, self._pages, pages))
        self._pages += pages
        while low < part.end:
            high = min(low // page * page + self._step, part.end)
            self._ranges.extend((low, high))
            self._waiting += max(high - low, page)
            self._done = done + high - part.start
            if self._waiting >= self._step:
                self.read()
            low = high

    def read(self) -> None:
        """Read the parts that were added and not yet read."""
        area = self.area
        self._session.report_progress("examining pages", self._done / self._total)
        read = self._session.directory.blocks.by_page(self._ranges, area.page, self._lists)
        area.states += read.states
        area.shares += read.shares
        area.used += read.used
        area.sizes += read.sizes
        area.sums = [a + b for a, b in zip(area.sums, read.sums)]
        self._ranges, self._waiting = array("Q"), 0


def _list_words(ranges: Sequence[Range]) -> array[int]:
    return Runs.of(merge_ranges(ranges)).words if ranges else NONE


def _count_resident(engine: Engine, area: Area, residency: Presence) -> None:
    """Set `resident` and `swapped` of an area. `resident` is None if the residency of any part is
    unknown."""
    bounds = array("Q", chain.from_iterable((part.start, part.end) for part in area.parts))
    is_known = engine.common_bytes(bounds, residency.known.words) == area.size
    area.resident = engine.common_bytes(bounds, residency.resident.words) if is_known else None
    area.swapped = engine.common_bytes(bounds, residency.swapped.words)


def predict_released_bytes(session: Session, allocator: Allocator, residency: Presence) -> Optional[int]:
    """Return the bytes by which the allocator's `release_call` would reduce the resident size. The
    number is exact to the page, unless other threads change the heap meanwhile. None if the
    allocator cannot predict it, or residency is unknown."""
    if not residency:
        return None
    if allocator.release_call:
        session.report_progress(f"counting what {allocator.release_call.partition('(')[0]} would return", 0.0)
    pages = allocator.find_releasable(session.directory.blocks)
    if pages is None:
        return None
    if session.engine.common_bytes(pages.words, residency.known.words) != pages.total:
        return None
    return session.engine.common_bytes(pages.words, residency.resident.words)


def measure_free(session: Session, allocator: Allocator, arenas: Sequence[ArenaUse], residency: Presence) -> FreeMemory:
    """Return the argument of Allocator.retention. `arenas`: the arenas of this allocator."""
    returns = predict_released_bytes(session, allocator, residency)
    found = read_areas(session, residency, lambda one: one is allocator)
    return FreeMemory(arenas, returns, sum(area.sum_state(State.FREE, PageState.IN_USE) for area in found))
