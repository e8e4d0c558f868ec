"""Find the live objects of pages that V8 has not swept yet.

V8 sweeps a page some time after a collection: only then dead objects become free memory. Before, V8
may free and reuse the maps of dead objects, whose sizes are then unknown. The marking bitmap of
such a page has a bit for each word of the page. The bit of the first word of each live object is
set. Up to V8 10.2, the bit of its second word is set, too. V8 clears the bitmap when it sweeps the
page.

Sources: V8 9.4 to 12.4 (Node 16 to 22), src/heap/marking.h (Bitmap: one bit for each word of a
page), src/heap/memory-chunk-layout.h (the bitmap is in the header of a page), src/heap/sweeper.cc
(Sweeper::RawSweep)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from findleaks.allocators.memory import Memory
from findleaks.target.base import Range

PAGE = 1 << 18  # bytes of a page; a page with one large object is larger
WORD = 8
BITMAP = PAGE // WORD // 8  # bytes
FIELDS = 0x200  # most bytes of a page's header before the bitmap
FEWEST = 16  # marks of pages by which the bitmap is found
SAMPLE, COMPARED = 16, 512  # most pages, and most marks of each, by which the bitmap is found
STRAY = 100  # of so many references and objects, one word may only look like a reference


class Marks:
    """The marking bitmaps of V8's pages. `headers` has the address of each page's header by the
    page's address; pages that the collector does not free have none. `is_map`: whether a word is
    the tagged address of a map."""

    def __init__(self, memory: Memory, headers: Mapping[int, int], is_map: Callable[[int], bool]) -> None:
        self._memory, self._headers, self._is_map = memory, headers, is_map
        self._offset = -1

    @property
    def is_known(self) -> bool:
        """Whether the offset of the bitmap in a page's header is known."""
        return self._offset >= 0

    def derive(self, areas: Sequence[Range], unread: Sequence[Range]) -> None:
        """Find the offset of the bitmap. In all areas, but first in the `unread` ones, each mark
        must be that of an object. No offset is used if several fit: the objects of a page may have
        one size."""
        pages = dict.fromkeys(area.start & -PAGE for area in [*unread, *areas[:: max(1, len(areas) // SAMPLE)]])
        offsets, marks = list(range(0, FIELDS, WORD)), dict.fromkeys(range(0, FIELDS, WORD), 0)
        for page in list(pages)[: 2 * SAMPLE]:
            header = self._header(page)
            counts = {offset: self._count(page, header[offset:]) for offset in offsets} if header else {}
            offsets = [offset for offset in offsets if counts.get(offset, 0) >= 0]
            for offset in offsets:
                marks[offset] += counts.get(offset, 0)
        fitting = [offset for offset in offsets if marks[offset] >= FEWEST]
        self._offset = fitting[0] if len(fitting) == 1 else -1

    def starts(self, area: Range) -> Sequence[int]:
        """Return the addresses of the marked objects in an area, ascending; () if there is no mark,
        or if the bitmap cannot be read."""
        page = area.start & -PAGE
        header = self._header(page) if self.is_known and area.end <= page + PAGE else b""
        found = list(iterate_marks(page, header[self._offset :])) if header else []
        return found[bisect_left(found, area.start) : bisect_left(found, area.end)]

    def _header(self, page: int) -> bytes:
        """Return the header of a page; b"" if it cannot be read, or if it has no bitmap."""
        return self._memory.read(self._headers[page], FIELDS + BITMAP) if page in self._headers else b""

    def _count(self, page: int, bitmap: bytes) -> int:
        """Return the number of marks in a bitmap, COMPARED at most; -1 if one of them is not that
        of an object."""
        words = [self._memory.word(at) or 0 for at in islice(iterate_marks(page, bitmap), COMPARED)]
        return len(words) if all(map(self._is_map, words)) else -1


def are_closed(words: Sequence[int], start: int, objects: Sequence[int], sizes: Sequence[int]) -> bool:
    """Return whether all references from marked objects to others in the same area refer to marked
    objects. This does not hold while V8 is marking.

    `words` are those of the area from `start` on, `objects` the addresses of the marked objects in
    it."""
    known, end, inside, wrong = {*objects}, start + WORD * len(words), 0, 0
    for at, size in zip(objects, sizes):
        for word in words[(at - start) // WORD : (at + size - start) // WORD]:
            if word & 3 == 1 and start <= word < end:
                inside += 1
                wrong += word - 1 not in known
    return wrong <= 1 + (inside + len(objects)) // STRAY


def iterate_marks(page: int, bitmap: bytes) -> Iterator[int]:
    """Yield the addresses of the marked objects. An object has two words or more, so the bit after
    that of its first word cannot be that of another object."""
    previous = -1
    for at in range(0, BITMAP, WORD):
        bits = int.from_bytes(bitmap[at : at + WORD], "little")
        while bits:
            lowest = bits & -bits
            bits ^= lowest
            number = 8 * at + lowest.bit_length() - 1
            if number != previous + 1 or previous < 0:
                yield page + WORD * number
                previous = number
            else:
                previous = -1
