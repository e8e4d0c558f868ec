"""PHP's values by their heads: both engines agree in all four variants, on whole and damaged heaps, in pieces of any size."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import graphs
import pytest
from fake import FakeTarget
from hypothesis import given, settings
from hypothesis import strategies as st
from word_heaps import HEAP, Memory

from findleaks.engine.contract import Engine
from findleaks.engine.terms import State
from findleaks.runtimes.php.engine import (
    ARRAYS,
    ELEMENTS,
    NO_VALUE,
    RANKS,
    REFERENCES,
    RESOURCES,
    STRINGS,
    Values,
    find_values,
    name_rank,
    rank_of,
)
from findleaks.runtimes.php.tables import find_deleted
from findleaks.target.arch import Arch
from findleaks.target.base import Piece, Range

ARCHES = st.sampled_from(graphs.ARCHES)


class Heap(Memory):
    """Blocks with values, 40 words apart."""

    def halves(self, at: int, *values: int) -> bytes:
        data = b"".join((value & 0xFFFFFFFF).to_bytes(4, self.arch.byteorder) for value in values)
        self.data[at : at + len(data)] = data
        return data

    def string(self, place: int, length: int) -> None:
        self.block(place, -(-(8 + 2 * self.word + length + 1) // self.word))
        at = place * self.word
        self.halves(at, 2, 0x56)
        self.put(place + 8 // self.word, 1 << (8 * self.word - 1) | 77, length)
        self.data[at + 8 + 2 * self.word : at + 8 + 2 * self.word + length] = b"x" * length

    def array(self, place: int, count: int, slots: int, elements: int, deleted: int = 0) -> None:
        self.block(place, 7 if self.word == 8 else 12)
        at = place * self.word
        self.halves(at, 1, 7 | 0x1234 << 10, 16, -slots)
        self.put(place + 16 // self.word, elements)
        places = 1 << max(3, count.bit_length())
        self.halves(at + 16 + self.word, count, count - deleted, places)

    def fixed(self, place: int, kind: int, size: int) -> None:
        self.block(place, size // self.word)
        self.halves(place * self.word, 1, kind | 0x10)


def whole(arch: Arch) -> tuple[Heap, list[int]]:
    """A heap with one value of each kind, and the numbers of its blocks."""
    heap = Heap(arch, 800)
    heap.string(0, 5)
    elements = HEAP + 80 * arch.word
    heap.array(40, 3, 2, elements + 8)
    heap.block(80, 24)
    heap.fixed(120, 10, 32)
    heap.fixed(160, 9, 32 if arch.word == 8 else 24)
    heap.array(200, 20, 64, elements)
    heap.block(240, 30)
    return heap, [STRINGS, ARRAYS + 3, ELEMENTS, REFERENCES, RESOURCES, ARRAYS + 16, NO_VALUE]


def answer(engine: Engine, heap: Heap, cuts: list[int]) -> Any:
    blocks = heap.built(engine)
    values = Values.of(blocks)
    bounds = [0, *cuts, len(heap.data)]
    cut = []
    for start, end in zip(bounds, bounds[1:]):
        cut += find_values(engine, blocks, graphs.piece(HEAP + start, bytes(heap.data[start:end])), values)
    return values.found.tolist(), bytes(values.patterns), values.sums.tolist(), cut, values.unused.tolist(), values.sparse.tolist()


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=lambda arch: f"{arch.word * 8}-{arch.byteorder}")
def test_each_kind_is_found(arch: Arch) -> None:
    heap, numbers = whole(arch)
    for engine in (graphs.native(arch), graphs.pure(arch)):
        found, patterns, sums, cut, unused, sparse = answer(engine, heap, [])
        assert found == numbers and not cut and not unused and not sparse
        used = (8 + 3 * 16) // arch.word  # the block is too small for elements with keys
        assert patterns == bytes([1, 0, 1 + used, 0, 0, 0, 0])
        assert sums[2 * STRINGS : 2 * STRINGS + 2] == [1, heap.blocks[0][1]]


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=lambda arch: f"{arch.word * 8}-{arch.byteorder}")
def test_unused_end_of_long_array(arch: Arch) -> None:
    """A block with the elements of a long array has no pattern in `patterns`. The unused memory of the block is listed in `unused`."""
    heap, at = Heap(arch, 1200), HEAP + 80 * arch.word
    heap.array(0, 40, 2, at + 8)
    heap.block(80, 1000)
    bucket = 16 + 2 * arch.word
    for engine in (graphs.native(arch), graphs.pure(arch)):
        found, patterns, _, _, unused, _ = answer(engine, heap, [])
        assert found == [ARRAYS + rank_of(40), ELEMENTS] and patterns == bytes(2)
        assert unused == [at + 8 + 40 * bucket, at + 1000 * arch.word]


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=lambda arch: f"{arch.word * 8}-{arch.byteorder}")
@pytest.mark.parametrize("keys", [False, True])
def test_deleted_elements(arch: Arch, keys: bool) -> None:
    """Runs of deleted elements are found. An element that is divided between two pieces is not."""
    deleted, number = {0, 3, 4, 5, 9, 30, 31}, 40
    size, slots = (16 + 2 * arch.word, 128) if keys else (16, 2)
    heap, start = Heap(arch, 1200), HEAP + 80 * arch.word + 4 * slots
    heap.array(0, number, slots, start, len(deleted))
    heap.block(80, (4 * slots + 64 * size) // arch.word)
    for place in set(range(number)) - deleted:
        heap.halves(start - HEAP + place * size + 8, 8)
    pieces = Pieces(FakeTarget({HEAP: bytes(heap.data)}, arch=arch), start + 4 * size + 8)
    for engine in (graphs.native(arch), graphs.pure(arch)):
        *_, sparse = answer(engine, heap, [])
        assert sparse == [start, number, size]
        blocks = heap.built(engine)
        for target, runs in ((pieces.target, [(0, 1), (3, 6), (9, 10), (30, 32)]), (pieces, [(0, 1), (3, 4), (5, 6), (9, 10), (30, 32)])):
            ranges = list(find_deleted(target, blocks, sparse))  # type: ignore[arg-type]
            assert ranges == [Range(start + first * size, start + last * size) for first, last in runs]


class Pieces:
    """The memory of a target, divided at an address."""

    def __init__(self, target: FakeTarget, cut: int) -> None:
        self.target, self.arch, self._cut = target, target.arch, cut

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        for low, high in ((start, self._cut), (self._cut, end)):
            yield from self.target.pieces(low, high)


@settings(max_examples=graphs.share(60))
@given(arch=ARCHES, seed=st.integers(0, 1 << 32))
def test_the_engines_agree(arch: Arch, seed: int) -> None:
    rng = random.Random(seed)
    heap, _ = whole(arch)
    for place in range(280, 760, 40):
        kind = rng.randrange(4)
        if kind == 0:
            heap.string(place, rng.randrange(40))
        elif kind == 1:
            count = rng.randrange(70)
            heap.array(place, count, 1 << rng.randrange(1, 8), HEAP + rng.randrange(800) * arch.word, rng.randrange(count + 1))
        else:
            heap.block(place, rng.choice((6, 7, 8, 12)), State(rng.choice((0, 0, 1, 2))))
    for _ in range(rng.choice((0, 3, 40))):
        heap.data[rng.randrange(len(heap.data))] ^= 1 << rng.randrange(8)
    cuts = sorted(rng.randrange(100) * 8 * arch.word for _ in range(rng.randrange(4)))
    assert answer(graphs.native(arch), heap, cuts) == answer(graphs.pure(arch), heap, cuts)


def test_ranks_of_lengths() -> None:
    assert [rank_of(length) for length in (0, 15, 16, 31, 32, (1 << 32) - 1)] == [0, 15, 16, 16, 17, RANKS - 1]
    assert [name_rank(rank) for rank in (0, 15, 16, 17)] == ["0", "15", "16–31", "32–63"]
