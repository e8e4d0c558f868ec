"""PHP's values, recognised by their headers: both engines agree in all four variants, on intact and damaged heaps, with
pieces of any size."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from typing import Any

import graphs
import pytest
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
    find_stale,
    find_values,
    name_rank,
    rank_of,
)
from findleaks.target.arch import Arch

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


def make_heap(arch: Arch) -> tuple[Heap, list[int]]:
    """Return a heap with one value of each kind, and the numbers of its blocks."""
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


def read_values(engine: Engine, heap: Heap, cuts: list[int]) -> Any:
    blocks = heap.built(engine)
    values = Values.of(blocks)
    bounds = [0, *cuts, len(heap.data)]
    cut = []
    for start, end in zip(bounds, bounds[1:]):
        cut += find_values(engine, blocks, graphs.piece(HEAP + start, bytes(heap.data[start:end])), values)
    return values.found.tolist(), bytes(values.patterns), values.sums.tolist(), cut, values.unused.tolist(), values.runs.tolist()


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=lambda arch: f"{arch.word * 8}-{arch.byteorder}")
def test_each_kind_is_found(arch: Arch) -> None:
    heap, numbers = make_heap(arch)
    for engine in (graphs.native(arch), graphs.pure(arch)):
        found, patterns, sums, cut, unused, runs = read_values(engine, heap, [])
        assert found == numbers and not cut and not unused and runs == [HEAP + 80 * arch.word + 8, 3, 16]
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
        found, patterns, _, _, unused, _ = read_values(engine, heap, [])
        assert found == [ARRAYS + rank_of(40), ELEMENTS] and patterns == bytes(2)
        assert unused == [at + 8 + 40 * bucket, at + 1000 * arch.word]


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=lambda arch: f"{arch.word * 8}-{arch.byteorder}")
@pytest.mark.parametrize("keys", [False, True])
def test_stale_values(arch: Arch, keys: bool) -> None:
    """Released values that refer to a block are found. A value that is divided between two pieces is not."""
    undefined, null, number = {0, 3, 4, 5, 9, 30, 31}, {12, 13, 20}, 40
    size, slots = (16 + 2 * arch.word, 128) if keys else (16, 2)
    heap, start = Heap(arch, 1200), HEAP + 80 * arch.word + 4 * slots
    heap.array(0, number, slots, start, len(undefined))
    heap.block(80, (4 * slots + 64 * size) // arch.word)
    for place in set(range(number)) - undefined:
        heap.halves(start - HEAP + place * size + 8, 1 if place in null else 8)
    for place in {*range(number)} - {9, 20}:  # the values at places 9 and 20 refer to no block
        heap.put((start - HEAP + place * size) // arch.word, HEAP)
    first, length = 4 * size + 8, size if not keys else 8
    alone = [(12, 12 * size + length), (13, 13 * size + length)] if keys else [(12, 14 * size)]
    for engine in (graphs.native(arch), graphs.pure(arch)):
        *_, runs = read_values(engine, heap, [])
        assert runs == [start, number, size]
        blocks, data = heap.built(engine), bytes(heap.data)
        for cut, parts in ((0, [(0, 1), (3, 6)]), (first, [(0, 1), (3, 4), (5, 6)])):
            at = start - HEAP + cut if cut else len(data)
            pieces = (graphs.piece(HEAP, data[:at]), graphs.piece(HEAP + at, data[at:]))
            stale = find_stale(engine, blocks, pieces, array("Q", runs))
            wanted = [
                *((low * size, high * size) for low, high in parts),
                *((low * size, high) for low, high in alone),
                (30 * size, 32 * size),
            ]
            assert list(zip(stale[::2], stale[1::2])) == [(start + low, start + high) for low, high in wanted]


@pytest.mark.parametrize("engine", [graphs.native, graphs.pure])
def test_runs_that_overlap_are_read_once(engine: Callable[[], Engine]) -> None:
    heap = Heap(graphs.X86_64, 100)
    heap.block(0, 100)
    heap.data[:] = (HEAP.to_bytes(8, "little") + bytes(8)) * (len(heap.data) // 16)
    runs = array("Q", [word for at in (0, 0, 160, 16) for word in (HEAP + at, 20, 16)])
    made = engine()
    assert list(find_stale(made, heap.built(made), [graphs.piece(HEAP, bytes(heap.data))], runs)) == [HEAP, HEAP + 480]
    assert runs[1::3].tolist() == [0, 1, 9, 20]


@settings(max_examples=graphs.share(60))
@given(arch=ARCHES, seed=st.integers(0, 1 << 32))
def test_the_engines_agree_about_stale_values(arch: Arch, seed: int) -> None:
    rng = random.Random(seed)
    heap, runs, at = Heap(arch, 800), array("Q"), 0
    for place in range(0, 760, 40):
        heap.block(place, rng.choice((6, 12, 30)))
    for offset in range(0, len(heap.data), arch.word):
        kind = rng.choice((0, 0, 1, 3, 4, 8, HEAP + rng.randrange(len(heap.data)) * (rng.random() < 0.9)))
        heap.put(offset // arch.word, kind)
    while at < len(heap.data):
        stride, count = rng.choice((16, 16 + 2 * arch.word)), rng.randrange(20)
        runs.extend((HEAP + at, count, stride))
        at += max(count * stride + rng.randrange(-8, 8) * arch.word, arch.word)  # runs may overlap
    runs[-2] += rng.choice((0, 1 << 40))  # the last run may end beyond the memory
    cuts = sorted(rng.randrange(800) * arch.word for _ in range(rng.randrange(4)))
    answers = []
    for engine in (graphs.native(arch), graphs.pure(arch)):
        bounds, blocks = [0, *cuts, len(heap.data)], heap.built(engine)
        pieces = [graphs.piece(HEAP + low, bytes(heap.data[low:high])) for low, high in zip(bounds, bounds[1:])]
        answers.append(
            find_stale(engine, blocks, pieces, array("Q", [word for one in range(len(runs) - 3, -1, -3) for word in runs[one : one + 3]]))
        )
    assert answers[0] == answers[1]


@settings(max_examples=graphs.share(60))
@given(arch=ARCHES, seed=st.integers(0, 1 << 32))
def test_the_engines_agree(arch: Arch, seed: int) -> None:
    rng = random.Random(seed)
    heap, _ = make_heap(arch)
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
    assert read_values(graphs.native(arch), heap, cuts) == read_values(graphs.pure(arch), heap, cuts)


def test_ranks_of_lengths() -> None:
    assert [rank_of(length) for length in (0, 15, 16, 31, 32, (1 << 32) - 1)] == [0, 15, 16, 16, 17, RANKS - 1]
    assert [name_rank(rank) for rank in (0, 15, 16, 17)] == ["0", "15", "16–31", "32–63"]
