"""Allocation areas of local heaps, to which no space of V8's heap refers, in handmade memory."""

from __future__ import annotations

import struct

import pytest
from fake import FakeTarget

from findleaks.allocators.memory import Memory
from findleaks.runtimes.node.local_areas import MOST_LOCAL, local_areas
from findleaks.target.base import Range

HEAP, LOCAL, OTHER, ALLOCATOR, PAGE = 0x5500_0000_0000, 0x5500_0001_0000, 0x5500_0001_2000, 0x5500_0002_0000, 0x3300_0000_0000
CHUNKS = [Range(PAGE, PAGE + 0x40000), Range(PAGE + 0x40000, PAGE + 0x80000)]


class Image:
    """A heap with the LocalHeap of the main thread, to which another LocalHeap is linked. The allocator of the other has an area."""

    def __init__(self) -> None:
        self.memory = {HEAP: bytearray(0x3000), LOCAL: bytearray(0x8000), ALLOCATOR: bytearray(0x1000)}
        self.put(HEAP + 0x900, LOCAL)
        self.put(LOCAL, HEAP)
        self.put(LOCAL + 0x40, OTHER)
        self.put(OTHER, HEAP)
        self.put(OTHER + 0x40, LOCAL)
        self.put(OTHER + 0x210, ALLOCATOR)
        self.area(PAGE + 0x14D8, PAGE + 0x15F0, PAGE + 0x94D8)

    def area(self, *bounds: int) -> None:
        self.put(ALLOCATOR, OTHER, HEAP, HEAP, *bounds)

    def put(self, address: int, *words: int) -> None:
        start = max(start for start in self.memory if start <= address)
        struct.pack_into(f"<{len(words)}Q", self.memory[start], address - start, *words)

    def areas(self) -> list[Range]:
        target = FakeTarget({start: bytes(data) for start, data in self.memory.items()})
        return list(local_areas(Memory(target), HEAP, CHUNKS))


def test_the_area_of_another_thread() -> None:
    assert Image().areas() == [Range(PAGE + 0x15F0, PAGE + 0x94D8)]


@pytest.mark.parametrize(
    "bounds",
    [
        (PAGE + 0x15F0, PAGE + 0x14D8, PAGE + 0x94D8),  # its bounds descend
        (PAGE + 0x14D8, PAGE + 0x94D8, PAGE + 0x94D8),  # is full
        (PAGE + 0x14D8, PAGE + 0x15F0, PAGE + 0x44000),  # ends on another page
        (PAGE + 0x14D8, PAGE + 0x15F1, PAGE + 0x94D8),  # is misaligned
        (HEAP + 0x100, HEAP + 0x200, HEAP + 0x300),  # on no page
        (0, 0, PAGE + 0x94D8),
    ],
)
def test_words_that_are_no_area(bounds: tuple[int, ...]) -> None:
    image = Image()
    image.area(*bounds)
    assert image.areas() == []


def test_the_search_has_an_end() -> None:
    image = Image()
    for at in range(2 * MOST_LOCAL):  # objects that look like linked heaps, each linked to the next one
        image.put(LOCAL + 16 * at, HEAP, LOCAL + 16 * (at + 1))
    assert len(image.areas()) < MOST_LOCAL
