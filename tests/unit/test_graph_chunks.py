"""Consistent headers of glibc's chunks: the C engine and the reference engine return the chunks that the heap was made of."""

from __future__ import annotations

import random
import struct
from array import array

import graphs
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.allocators.glibc.engine import sound_chunks
from findleaks.engine.contract import Engine
from findleaks.target.base import Piece

SEEDS = st.integers(0, 2**32 - 1)
BASE = 0x7F0000010000
WILD = (0, 1, 2, 4, 0x10, 0x18, 0x20, 0x21, 0x30, 0x31, 0x35, 0x3131313131313131, 1 << 63, (1 << 64) - 16, (1 << 64) - 1)


class Heap:
    """Chunks one after the other, as malloc leaves them: no two adjacent chunks are free, the last chunk is in use, and
    a header follows it."""

    def __init__(self, rng: random.Random, arena: int) -> None:
        self.chunks: list[int] = []
        self.free: list[int] = []
        self.normal = 1 | arena
        data, at, behind = bytearray(), BASE, 0  # behind: the size of the chunk before `at` if it is free
        for number in range(rng.randrange(1, 60)):
            size = 16 * rng.randrange(2, 12)
            is_free = not behind and number > 0 and rng.random() < 0.3
            head = size | (0 if behind else 1) | (0 if is_free else arena)
            data += struct.pack("<QQ", behind or rng.getrandbits(64), head) + bytes(size - 16)
            self.chunks.append(at)
            if is_free:
                self.free.append(at)
            at, behind = at + size, size if is_free else 0
        if behind:
            self.free.pop()  # the end of the last chunk is not examined
        self.stop = at
        self.data = data + struct.pack("<QQ", behind, 0x1000 | (0 if behind else 1))


def make_engines() -> list[Engine]:
    return [graphs.native(), graphs.pure()]


@settings(max_examples=graphs.share(100), deadline=None)
@given(SEEDS, st.sampled_from([0, 4]))
def test_an_intact_heap(seed: int, arena: int) -> None:
    heap = Heap(random.Random(seed), arena)
    for engine in make_engines():
        chunk, previous, count, free = sound_chunks(engine, Piece(BASE, memoryview(heap.data)), BASE, heap.stop, heap.normal, 0)
        assert (chunk, previous, count) == (heap.stop, heap.chunks[-1], len(heap.chunks))
        assert free.tolist() == heap.free
    # If memory ends just before a header, no memory after it is read. A free chunk of an arena needs the next header,
    # so the check may end at this chunk.
    ends = graphs.piece(BASE, heap.data[: heap.chunks[-1] + 8 - BASE])
    made, reference = (sound_chunks(engine, ends, BASE, heap.stop, heap.normal, 0) for engine in make_engines())
    assert made == reference
    assert made[0] in heap.chunks[-2:]


@settings(max_examples=graphs.share(300), deadline=None)
@given(SEEDS, st.sampled_from([0, 4]))
def test_engines_agree_on_damaged_heaps(seed: int, arena: int) -> None:
    rng = random.Random(seed)
    heap = Heap(rng, arena)
    for _ in range(rng.randrange(4)):
        place = rng.choice(heap.chunks) - BASE + rng.choice((0, 8, 8, 8))
        heap.data[place : place + 8] = struct.pack("<Q", rng.choice((*WILD, rng.getrandbits(9))))
    low, high = sorted((rng.randrange(len(heap.data)), rng.randrange(len(heap.data)) + 1))
    part = (low, high) if rng.random() < 0.5 else (0, len(heap.data))
    piece = graphs.piece(BASE + part[0], heap.data[part[0] : part[1]])
    start = rng.choice((BASE, rng.choice(heap.chunks), BASE + rng.randrange(len(heap.data)), (1 << 64) - 16))
    stop = rng.choice((heap.stop, rng.choice(heap.chunks), 0, (1 << 64) - 64))
    previous = rng.choice((0, 0, start - 32, start & ~0xFFF, start - 12, BASE, 8))
    made, reference = (sound_chunks(engine, piece, start, stop, heap.normal, previous) for engine in make_engines())
    assert made == reference


def test_a_damaged_header_ends_the_check() -> None:
    heap = Heap(random.Random(5), 0)
    while len(heap.chunks) < 20 or heap.chunks[9] in heap.free or heap.chunks[10] in heap.free:
        heap = Heap(random.Random(len(heap.chunks) * 31 + heap.stop), 0)
    place = heap.chunks[10] - BASE + 8
    heap.data[place : place + 8] = b"\x31" * 8
    for engine in make_engines():
        found = sound_chunks(engine, Piece(BASE, memoryview(heap.data)), BASE, heap.stop, 1, 0)
        assert (found.chunk, found.previous, found.headers) == (heap.chunks[10], heap.chunks[9], 10)
        assert isinstance(found.free, array)
