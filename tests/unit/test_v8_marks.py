"""Live objects of pages that V8 has not swept yet are found by the marking bitmaps of the pages, in handmade memory."""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import graphs
import pytest
from fake import FakeTarget

from findleaks.runtimes.v8.engine import UP_TO_MAP, Size, constant_size
from findleaks.runtimes.v8.heap_objects import HeapObjects
from findleaks.target.arch import X86_64
from findleaks.target.base import Range

PAGES = (0x3300_0000_0000, 0x3300_0004_0000, 0x3300_0008_0000)
LENGTH, BITMAP, AREA = 0x40000, 0x128, 0x1130
MAPS = {
    0x3200_0000_0001 + 80 * number: size for number, size in enumerate([*(constant_size(at) for at in (16, 24, 40, 64)), Size(UP_TO_MAP)])
}
FREED = 0x3200_0000_1001
"""The tagged address of a map that V8 has freed and reused."""

UP_TO = [*MAPS][-1]


class Maps:
    """The maps of the handmade heap, with the interface of findleaks.runtimes.v8.maps.Maps that the walk uses."""

    def all_maps(self) -> Iterable[int]:
        return MAPS

    def size(self, word: int) -> Size | None:
        return MAPS.get(word)

    def array_fields(self, word: int) -> Sequence[int]:
        return [8] if MAPS[word].base == 24 else []

    def is_free(self, word: int) -> bool:
        return False

    def add_meta(self, word: int) -> bool:
        return False


class Heap:
    """Pages full of objects. `live` has the addresses of the live objects, `every` those of all objects. `bits` is the number of bits of
    a mark."""

    def __init__(self, bits: int) -> None:
        self.bits, self.every = bits, list[int]()
        self.live: dict[int, None] = {}
        self.memory = {page: bytearray(LENGTH) for page in PAGES}
        self.state = random.Random(bits)
        for page in PAGES:
            self.fill(page)

    def fill(self, page: int) -> None:
        end, at = page + LENGTH, page + AREA
        while at < end:
            left = end - at  # at least 16 bytes remain, or none
            word = self.state.choice([one for one in MAPS if (MAPS[one].base or 32) == left or (MAPS[one].base or 32) + 16 <= left])
            self.put(at, word, *self.state.choices(range(4), k=(MAPS[word].base or 32) // 8 - 1))
            self.every.append(at)
            if self.state.randrange(3):
                self.live[at] = None
                self.mark(at)
            at += MAPS[word].base or 32

    def put(self, address: int, *words: int) -> None:
        page = address & -LENGTH
        struct.pack_into(f"<{len(words)}Q", self.memory[page], address - page, *words)

    def word(self, address: int) -> int:
        page = address & -LENGTH
        (word,) = struct.unpack_from("<Q", self.memory[page], address - page)
        return int(word)

    def mark(self, address: int) -> None:
        page = address & -LENGTH
        for number in range((address - page) // 8, (address - page) // 8 + self.bits):
            self.memory[page][BITMAP + number // 8] |= 1 << number % 8

    def sweep(self, page: int) -> None:
        """Clear the bitmap of a page. Its dead objects are counted then."""
        self.memory[page][BITMAP : BITMAP + LENGTH // 64] = bytes(LENGTH // 64)

    def find(self, page: int, *words: int, followed_by: bool = True) -> int:
        """Return the address of the first dead object of a page with one of these maps that precedes a live (or dead) object."""
        pairs = zip(self.every, self.every[1:])
        fitting = (one for one, following in pairs if one not in self.live and (following in self.live) == followed_by)
        return next(at for at in fitting if at & -LENGTH == page and self.word(at) in words)

    def read(self, engine: Any) -> HeapObjects:
        target = FakeTarget({page: bytes(data) for page, data in self.memory.items()})
        areas = [Range(page + AREA, page + LENGTH) for page in PAGES]
        maps: Any = Maps()
        return HeapObjects(target, engine(X86_64), maps, areas, Range(0, 0), {page: page for page in PAGES})


def starts_of(found: HeapObjects) -> list[int]:
    return list(found.blocks.columns_of(array("I", range(len(found.blocks)))).address)


def on(addresses: Iterable[int], *pages: int) -> list[int]:
    return [at for at in addresses if at & -LENGTH in pages]


@pytest.mark.parametrize("engine", [graphs.native, graphs.pure])
@pytest.mark.parametrize("bits", [1, 2])
def test_dead_objects_whose_maps_were_freed(bits: int, engine: Any) -> None:
    heap = Heap(bits)
    heap.put(heap.find(PAGES[0], *MAPS), FREED)
    heap.sweep(PAGES[1])
    found = heap.read(engine)
    assert found.unread == []
    assert starts_of(found) == [*on(heap.live, PAGES[0]), *on(heap.every, PAGES[1], PAGES[2])]
    assert sum(found.table.totals[::2]) == len(found.blocks)


def test_a_dead_object_that_covers_a_live_one() -> None:
    """The memory of the freed map has a map of larger objects now, so the walk misses the live object and does not stop."""
    heap = Heap(2)
    heap.put(heap.find(PAGES[0], *MAPS), FREED)
    short, _, middle, large, _ = MAPS
    at = next(
        one
        for one, following in zip(heap.every, heap.every[1:])
        if one not in heap.live and following in heap.live and (heap.word(one), heap.word(following)) == ([*MAPS][1], short)
        if one & -LENGTH == PAGES[2]
    )
    assert MAPS[middle].base == 24 + 16 and large
    heap.put(at, middle)
    found = heap.read(graphs.native)
    assert starts_of(found) == [*on(heap.live, PAGES[0]), *on(heap.every, PAGES[1]), *on(heap.live, PAGES[2])]


def test_marks_of_a_collection_that_has_not_ended() -> None:
    """While V8 is marking, objects without a mark may be live: marked objects refer to them."""
    heap = Heap(1)
    heap.put(heap.find(PAGES[0], *MAPS), FREED)
    dead = on((at for at in heap.every if at not in heap.live), PAGES[0])
    for at in on(heap.live, PAGES[0])[:200]:
        heap.put(at + 8, heap.state.choice(dead) + 1)
    (unread,) = heap.read(graphs.native).unread
    assert unread.end == PAGES[0] + LENGTH


def test_a_page_without_marks_is_unread() -> None:
    heap = Heap(2)
    at = heap.find(PAGES[0], *MAPS)
    heap.put(at, FREED)
    for page in PAGES:
        heap.sweep(page)
    assert heap.read(graphs.native).unread == [Range(at, PAGES[0] + LENGTH)]


def test_pages_with_objects_of_one_size() -> None:
    """Several places of the bitmap are possible, so none is used."""
    heap = Heap(2)
    (word,) = (one for one, size in MAPS.items() if size.base == 64)
    for page in PAGES:
        heap.memory[page][:] = bytes(LENGTH)
        for at in range(page + AREA + 0x10, page + LENGTH, 64):
            heap.put(at, word)
            if at < page + LENGTH - 0x8000 and at > page + 0x8000:
                heap.mark(at)
    heap.put(PAGES[0] + AREA, *MAPS, 0, 0)
    assert len(heap.read(graphs.native).unread) == 3
