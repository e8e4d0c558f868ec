"""Unused parts of V8's heap in handmade pages: halves of the new space, free lists, allocation areas, freed chunks."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from fake import FakeTarget

from findleaks.engine.reference.engine import PureEngine
from findleaks.runtimes.node.dead import dead
from findleaks.runtimes.node.heap import CHUNK
from findleaks.runtimes.node.spaces import Placed, Space, Spaces
from findleaks.target.base import Range

PAGES, SPACE, NATIVE, MAP = 0x3300_0000_0000, 0x5500_0000_0000, 0x5500_0001_0000, 0x3500_0000_1001
HEADER, LIST, HALVES = 0x110, 0x100, (SPACE + 0x1000, SPACE + 0x2000)
AREA = CHUNK - HEADER


class Image:
    """Pages 0 to 2 are one half of the new space, pages 3 to 5 are the other half, and each half is linked backwards.
    Pages 6 and 7 are old, and page 8 was freed. The objects are in page 2, and in the first 0x800 bytes of page 1. Page
    7 has a free list with two entries, and another with one."""

    def __init__(self) -> None:
        self.memory = {PAGES: bytearray(9 * CHUNK), SPACE: bytearray(0x4000), NATIVE: bytearray(0x4000)}
        self.starts = [PAGES + CHUNK * number for number in range(9)]
        for start in self.starts:
            self.put(start, CHUNK, 4, 0x1234, start + HEADER, start + CHUNK)
        self.counted = AREA + 0x800
        self.put(SPACE + 0x20, SPACE + 0x200)
        self.put(SPACE + 0x200, self.starts[1] + HEADER, self.starts[1] + HEADER + 0x800, self.starts[1] + HEADER + 0x900)
        self.following = {2: 1, 1: 0, 5: 4, 4: 3}
        self.left = [Range(self.starts[6] + 0x2000, self.starts[6] + 0x3000)]
        for number, page in enumerate(self.starts[6:8]):
            self.put(page + LIST, NATIVE + 0x100 * number)
            self.put(NATIVE + 0x100 * number, *(NATIVE + 0x1000 + 0x400 * number + 32 * entry for entry in range(24)))
            for entry in range(24):
                self.put(NATIVE + 0x1000 + 0x400 * number + 32 * entry, entry)
        page = self.starts[7]
        self.category(2, 0x80 + 24, page + 0x8001)
        self.category(5, 0x1000, page + 0x20001)
        self.put(page + 0x8000, MAP, 0x80 << 32, page + 0x4001)
        self.put(page + 0x4000, MAP, 24 << 32, 0)
        self.put(page + 0x20000, MAP, 0x1000 << 32, 0)
        self.problems: list[str] = []
        self.others: list[int] = []

    def category(self, number: int, available: int, first: int) -> None:
        self.put(NATIVE + 0x1400 + 32 * number, available << 32 | number, first)

    def put(self, address: int, *words: int) -> None:
        start = max(start for start in self.memory if start <= address)
        struct.pack_into(f"<{len(words)}Q", self.memory[start], address - start, *words)

    def dead(self) -> list[tuple[int, int, int]]:
        """Return (page, start, end) of each unused part."""
        chunks = [Range(start, start + CHUNK) for start in self.starts]
        new, old = Space(1, 1, "new_space", SPACE, None, None, chunks[:6]), Space(1, 2, "old_space", SPACE, None, None, chunks[6:8])
        new.counted, old.left = self.counted, self.left
        for number in range(6):
            following = self.starts[self.following[number]] if number in self.following else 0
            new.placed.append(Placed(chunks[number], HALVES[number // 3], self.starts[number], following))
        old.placed += [Placed(chunk, SPACE + 0x3000, chunk.start, 0) for chunk in chunks[6:8]]
        target = FakeTarget({start: bytes(data) for start, data in self.memory.items()})
        found = dead(target, PureEngine(target.arch), Spaces([new, old], chunks[8:], [], self.problems), self.others)
        assert found == sorted(found)
        return [
            (number, start - PAGES - number * CHUNK, end - PAGES - number * CHUNK) for start, end in found for number in [self.page(start)]
        ]

    def page(self, address: int) -> int:
        return (address - PAGES) // CHUNK


NEW = [(0, HEADER, CHUNK), (1, HEADER + 0x800, CHUNK), *((number, HEADER, CHUNK) for number in (3, 4, 5))]
LEFT = [(6, 0x2000, 0x3000)]
FREE = [(7, 0x8018, 0x8080), (7, 0x20018, 0x21000)]
FREED = [(8, 0x2000, CHUNK)]


def test_all_unused_parts() -> None:
    assert Image().dead() == [*NEW, *LEFT, *FREE, *FREED]


def test_a_full_page_is_the_last() -> None:
    image = Image()
    image.counted = AREA
    image.put(SPACE + 0x30, image.starts[2] + CHUNK)
    image.put(SPACE + 0x200, 0, 0, 0)
    assert [part for part in image.dead() if part[0] < 6] == [(number, HEADER, CHUNK) for number in (0, 1, 3, 4, 5)]


def _no_top(image: Image) -> None:
    image.put(SPACE + 0x200, image.starts[1] + HEADER, image.starts[1] + HEADER + 0x7F8, image.starts[1] + HEADER + 0x900)


def _both(image: Image) -> None:
    image.put(SPACE + 0x28, image.starts[4] + HEADER + 0x800)


def _ring(image: Image) -> None:
    image.following[0] = 2


def _broken(image: Image) -> None:
    image.following[1] = 4


def _header(image: Image) -> None:
    image.put(image.starts[4] + 24, image.starts[4] + 0x10000)


def _uncounted(image: Image) -> None:
    image.counted = 4 * CHUNK


@pytest.mark.parametrize("damage", [_no_top, _both, _ring, _broken, _header, _uncounted])
def test_nothing_in_the_new_space_if_counters_contradict(damage: Callable[[Image], None]) -> None:
    image = Image()
    damage(image)
    assert image.dead() == [*LEFT, *FREE, *FREED]


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (0x8000, (MAP, 0x88 << 32, PAGES + 7 * CHUNK + 0x4001)),  # more free bytes than V8 counts
        (0x8000, (MAP, 0x80 << 32, 0)),  # fewer free bytes
        (0x8000, (MAP, 0x80 << 32, PAGES + 7 * CHUNK + 0x8001)),  # overlaps with the next entry
        (0x4000, (MAP, 16 << 32, 0)),
        (0x4000, (MAP + 8, 24 << 32, 0)),  # another map
        (0x8000, (MAP, 0x80 << 32, PAGES + 6 * CHUNK + 0x4001)),  # on another page
        (0x8000, (MAP, 0x80 << 32, PAGES + 7 * CHUNK + CHUNK - 7)),
        (0x8000, (MAP, 0x80 << 32, 3)),
    ],
)
def test_nothing_in_a_page_if_its_counter_contradicts(at: int, words: tuple[int, ...]) -> None:
    image = Image()
    image.put(image.starts[7] + at, *words)
    assert image.dead() == [*NEW, *LEFT, *FREED]


def test_entries_that_overlap() -> None:
    image = Image()
    image.category(5, 0x1000, image.starts[7] + 0x7F01)
    image.put(image.starts[7] + 0x7F00, MAP, 0x1000 << 32, 0)
    image.put(image.starts[7] + 0x8000, MAP, 0x80 << 32, image.starts[7] + 0x4001)
    assert image.dead() == [*NEW, *LEFT, *FREED]


def test_areas_are_within_their_page() -> None:
    image = Image()
    start, end = image.starts[6], image.starts[7]
    image.left = [Range(end - 8, end + 8), Range(start - 8, start + 8), Range(PAGES - 16, PAGES - 8), Range(end, end)]
    assert image.dead() == [*NEW, *FREE, *FREED]


def test_a_freed_chunk_in_use_by_other_code() -> None:
    image = Image()
    image.others = [image.starts[7], image.starts[8] + 0x1000]
    assert image.dead() == [*NEW, *LEFT, *FREE]


def test_nothing_if_chunks_are_uncertain() -> None:
    image = Image()
    image.problems.append("new_space counts another size")
    assert image.dead() == []
