"""Structures of Zend's memory manager: heaps, chunks with their page maps, and huge blocks.

Source: Zend/zend_alloc.c and zend_alloc_sizes.h of PHP 7.0 to 8.4 (struct _zend_mm_heap,
_zend_mm_chunk, _zend_mm_huge_list). Later versions and some builds have additional members in the
heap. Only its first members have fixed offsets; the others are found by their values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges, range_at
from findleaks.value_classes import NamedTuple

CHUNK, PAGE, PAGES = 2 << 20, 4096, 512
SIZES = (
    *(8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256),
    *(320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2560, 3072),
)
"""The size of the blocks of each bin, in bytes (ZEND_MM_BINS_INFO)."""
BIN_PAGES = (*(1,) * 16, 5, 3, 1, 1, 5, 3, 2, 2, 5, 3, 7, 4, 5, 3)
"""The number of pages of a run of each bin."""

HEADER = 64  # bytes of a chunk before its heap_slot
MAP_BYTES = PAGES // 8  # bytes of the bitmap free_map, which precedes `map`, the page map
SIZE, PEAK, FREE_SLOTS = 2, 3, (4, 5)
"""Places of the members size, peak and free_slot in a heap, in words. In PHP 8.4, shadow_key
precedes free_slot."""
_BINS = len(SIZES)
_WORDS = 64  # words of a heap that are read; it has 48 to 56
_LARGE, _SMALL = 0x40000000, 0x80000000  # ZEND_MM_IS_LRUN, ZEND_MM_IS_SRUN
_FIRST_PAGE = _LARGE | 1  # the entry of a chunk's header in its own page map
MOST_CHUNKS = 1 << 20
MOST_HUGE = 1 << 20


class Place(NamedTuple):
    """A heap in its main chunk.

    `address` is the address of the heap, `map` the offset of the page map in each chunk.
    `free_slot` and `main` are the places of free_slot and main_chunk in the heap, in words."""

    address: int
    map: int
    free_slot: int
    main: int

    @property
    def chunk(self) -> int:
        """The address of the main chunk."""
        return self.address - HEADER


class Run(NamedTuple):
    """Adjacent pages of a chunk that contain one large block, or blocks of one bin. `page` is the
    number of the first page, `blocks` the number of blocks."""

    page: int
    pages: int
    size: int
    blocks: int


class Chunk(NamedTuple):
    """A chunk. `bad` lists the numbers of its pages with an invalid entry in the page map. `free`
    is the number of free pages in the bitmap, `counted` the number in the chunk's header."""

    start: int
    runs: Sequence[Run]
    bad: Sequence[int]
    free: int
    counted: int


class Huge(NamedTuple):
    """A huge block. `node`: the address of its entry in the list, which is a block of the heap."""

    node: int
    start: int
    size: int


def find_places(target: Target) -> Iterator[Place]:
    """Yield the heaps. A heap is in its main chunk, and each of the two contains the address of the
    other. Chunks are aligned to their size."""
    memory = Memory(target)
    for region in target.regions():
        if not (region.readable and region.writable and region.anonymous):
            continue
        for start in range(region.start + -region.start % CHUNK, region.end - CHUNK + 1, CHUNK):
            if memory.word(start) == start + HEADER:
                place = _place_at(memory, start)
                if place is not None:
                    yield place


def _place_at(memory: Memory, start: int) -> Optional[Place]:
    words = memory.words(start + HEADER, _WORDS)
    if words is None:
        return None
    found: list[tuple[int, int, int]] = []
    for first in FREE_SLOTS:
        tail = first + _BINS + 4  # real_size, real_peak, limit and another member precede it
        main = next((at for at in range(tail, tail + 8) if words[at] == start), 0)
        if main and words[first + _BINS] >= CHUNK and words[first + _BINS] % PAGE == 0:
            wrong = sum(bool(head) and memory.word(head & -CHUNK) != start + HEADER for head in words[first : first + _BINS])
            found.append((wrong, first, main))
    if not found:
        return None
    _, first, main = min(found)
    page_map = _page_map(memory, start, HEADER + (main + 2) * memory.size)
    return Place(start + HEADER, page_map, first, main) if page_map else None


def _page_map(memory: Memory, start: int, least: int) -> int:
    """Return the offset of the page map in a chunk, or 0. The number of free pages in the bitmap
    before it must equal the number in the chunk's header. `least` is the least possible offset of
    the bitmap."""
    most = PAGE - 4 * PAGES
    data = memory.read(start, most + 4)
    order = memory.arch.byteorder
    wanted = memory.int32(start + 3 * memory.size)
    for at in range(least + MAP_BYTES + -least % 4, len(data) - 3, 4):
        if int.from_bytes(data[at : at + 4], order) == _FIRST_PAGE:
            used = bin(int.from_bytes(data[at - MAP_BYTES : at], order)).count("1")
            if PAGES - used == wanted:
                return at
    return 0


class Chunks:
    """Reads the chunks and huge blocks of a heap. `problems` lists damage as (address, message)."""

    def __init__(self, target: Target, place: Place) -> None:
        self._memory, self._place = Memory(target), place
        self._mapped = merge_ranges(Range(region.start, region.end) for region in target.regions() if region.readable)
        self.problems: list[tuple[int, str]] = []
        self.words = self._memory.words(place.address, _WORDS) or (0,) * _WORDS
        self.in_use = list(self._ring())
        self.cached = list(self._iterate_cached())
        self.huge = list(self._huge())

    def _is_mapped(self, start: int, size: int) -> bool:
        found = range_at(self._mapped, start)
        return found is not None and start + size <= found.end

    def _ring(self) -> Iterator[Chunk]:
        """Yield the chunks in use, which are linked in a ring."""
        memory, place = self._memory, self._place
        at, seen = place.chunk, set[int]()
        while at not in seen and len(seen) < MOST_CHUNKS:
            head = memory.words(at, 3)
            if head is None or at % CHUNK or head[0] != place.address or not self._is_mapped(at, CHUNK):
                self.problems.append(
                    (at, f"PHP's ring of chunks leads to {at:#x}, which is not a chunk: the blocks of further chunks are unknown")
                )
                return
            seen.add(at)
            yield self._chunk(at)
            at = head[1]
        if at != place.chunk:
            self.problems.append((at, f"PHP's ring of chunks has a wrong cycle at {at:#x}: the blocks of further chunks are unknown"))

    def _chunk(self, start: int) -> Chunk:
        memory = self._memory
        order, at = memory.arch.byteorder, self._place.map
        header = memory.read(start, PAGE)
        form = memory.arch.structure("I" * PAGES)
        infos = form.unpack(header[at : at + 4 * PAGES]) if header else (0,) * PAGES
        width = memory.size
        groups = (header[place : place + width] for place in range(at - MAP_BYTES, at, width))
        used = [bool(int.from_bytes(group, order) >> bit & 1) for group in groups for bit in range(8 * width)]
        runs: list[Run] = []
        bad: list[int] = []
        page = 0
        while page < PAGES:
            if not used[page]:
                page += 1
                continue
            run = _run(page, infos[page])
            if run is None or page + run.pages > PAGES or not all(used[page : page + run.pages]):
                bad.append(page)
                page += 1
                continue
            if page:
                runs.append(run)
            page += run.pages
        return Chunk(start, runs, bad, used.count(False), memory.int32(start + 3 * width) or 0)

    def _iterate_cached(self) -> Iterator[int]:
        """Yield the cached chunks, which have no blocks."""
        at, seen = self.words[self._place.main + 1], {chunk.start for chunk in self.in_use}
        while at:
            if at % CHUNK or at in seen or len(seen) > MOST_CHUNKS or not self._is_mapped(at, CHUNK):
                self.problems.append((at, f"PHP's list of cached chunks leads to {at:#x}, which is not a cached chunk"))
                return
            seen.add(at)
            yield at
            at = self._memory.word(at + self._memory.size) or 0

    def _huge(self) -> Iterator[Huge]:
        node, seen = self.words[self._place.main - 1], set[int]()
        while node:
            words = self._memory.words(node, 3)
            if words is None or node in seen or len(seen) > MOST_HUGE or words[0] % CHUNK or words[1] % PAGE or not words[1]:
                self.problems.append((node, f"PHP's list of huge blocks leads to {node:#x}, which is not an entry of the list"))
                return
            seen.add(node)
            if self._is_mapped(words[0], words[1]):
                yield Huge(node, words[0], words[1])
            else:
                self.problems.append((node, f"PHP's huge block of {words[1]:,} bytes at {words[0]:#x} is not mapped"))
            node = words[2]


def _run(page: int, info: int) -> Optional[Run]:
    """Return the run that begins at a page. `info` is the page's entry in the page map. None if no
    run begins there."""
    if info & (_LARGE | _SMALL) == _LARGE:
        pages = info & 0x3FF
        return Run(page, pages, pages * PAGE, 1) if pages else None
    number = info & 0x1F
    if info & (_LARGE | _SMALL) != _SMALL or number >= _BINS:
        return None
    pages = BIN_PAGES[number]
    return Run(page, pages, SIZES[number], pages * PAGE // SIZES[number])
