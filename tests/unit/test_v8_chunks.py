"""V8's chunks in handmade memory, as in V8 12: the header of a chunk refers to V8's data about it. Other memory may look like a chunk."""

from __future__ import annotations

import random
import struct

import pytest
from fake import FakeTarget

from findleaks.errors import Interrupted
from findleaks.runtimes.node.heap import CHUNK, chunks
from findleaks.target.base import Range

HEAP = 0x5500_0001_0000
HEAPS = frozenset([HEAP])
BASE = 0x3300_0000_0000
KNOWN = 0x5500_0002_0000
SIZE, ALLOCATED, OF_HEAP = 6, 3, 8
"""Words of what is known of a chunk: its size, what is allocated of it, the heap."""


class Image:
    """Memory of adjacent chunks, and of V8's data about them."""

    def __init__(self, sizes: list[int]) -> None:
        self.starts = [BASE + sum(-(-size // CHUNK) * CHUNK for size in sizes[:number]) for number in range(len(sizes))]
        end = self.starts[-1] + -(-sizes[-1] // CHUNK) * CHUNK
        self.space, self.known = bytearray(end - BASE + 4 * CHUNK), bytearray(1 << 20)
        for number, (start, size) in enumerate(zip(self.starts, sizes)):
            at = KNOWN + 512 * number
            self.header(start, at)
            self.put(at, start + 16, start, size - 24, size // 2 + 8, 0, 0, size, start + size, HEAP, start + 16)

    def put(self, address: int, *words: int) -> None:
        memory, base = (self.space, BASE) if BASE <= address < BASE + len(self.space) else (self.known, KNOWN)
        struct.pack_into(f"<{len(words)}Q", memory, address - base, *words)

    def header(self, start: int, known: int) -> None:
        self.put(start, 0x184, known, 0x314919273099)

    def target(self, **more: int) -> FakeTarget:
        return FakeTarget({BASE: bytes(self.space), KNOWN: bytes(self.known)}, **more)  # type: ignore[arg-type]


SIZES = [CHUNK] * 20 + [3 * CHUNK + 8192, CHUNK, CHUNK - 4096]


def find_chunks(image: Image, sizes: list[int]) -> list[Range]:
    return [Range(start, start + size) for start, size in zip(image.starts, sizes)]


def test_every_chunk_has_its_size() -> None:
    image = Image(SIZES)
    assert chunks(image.target(), HEAPS) == find_chunks(image, SIZES)
    assert chunks(image.target(), frozenset([HEAP + 8])) == []
    assert chunks(image.target(), frozenset()) == []


def test_size_after_a_smaller_multiple_of_the_page_size() -> None:
    """A smaller multiple of the page size before the size is not mistaken for the size."""
    image = Image(SIZES)
    for number in (2, 5, 20):
        image.put(KNOWN + 512 * number + 8 * ALLOCATED, 8192)
    assert chunks(image.target(), HEAPS) == find_chunks(image, SIZES)


def test_other_memory_looks_like_a_chunk() -> None:
    """V8's data about chunks may be where a chunk could begin: they contain the heap's address as well."""
    image = Image(SIZES)
    end = image.starts[-1] + CHUNK
    image.put(end, 0x1000, end, CHUNK, 0, 0, 0, CHUNK, 0, HEAP)
    assert chunks(image.target(), HEAPS) == find_chunks(image, SIZES)


def test_freed_chunk_refers_to_another_chunk() -> None:
    """A freed chunk, as large as the others, refers to a large object's chunk. This chunk is listed once."""
    image = Image(SIZES)
    end = image.starts[-1] + CHUNK
    image.header(end, KNOWN + 512 * 20)
    assert chunks(image.target(), HEAPS) == [*find_chunks(image, SIZES), Range(end, end + CHUNK)]


def test_objects_of_a_large_chunk_are_no_chunks() -> None:
    image = Image(SIZES)
    image.header(image.starts[20] + CHUNK, KNOWN + 512 * 21)
    assert chunks(image.target(), HEAPS) == find_chunks(image, SIZES)


def test_any_word_may_be_wrong() -> None:
    """The listed chunks are sorted, disjoint, and inside memory."""
    pick = random.Random(3)
    for _ in range(60):
        image = Image(SIZES)
        for _ in range(30):
            at = pick.choice([pick.choice(image.starts) + 8 * pick.randrange(4), KNOWN + 512 * pick.randrange(23) + 8 * pick.randrange(10)])
            image.put(at, pick.choice([0, 1 << 62, CHUNK, 1 << 40, HEAP, KNOWN + 512 * pick.randrange(23), pick.getrandbits(64)]))
        found = chunks(image.target(), HEAPS)
        assert all(before.end <= after.start for before, after in zip(found, found[1:]))
        assert all(BASE <= start < end <= BASE + len(image.space) for start, end in found)


def test_interruption() -> None:
    with pytest.raises(Interrupted):
        chunks(Image(SIZES).target(stop_after=0), HEAPS)
