"""The C engine's loops with words of 4 and 8 bytes and both byte orders: the Python engine returns the same results,
for intact and damaged memory. Other files compare the loops with their definitions, for words of 8 bytes. Heaps, slabs
and rows have files of their own, with all variants."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from typing import Any

import graphs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.allocators.glibc.engine import sound_chunks, walk_chunks
from findleaks.engine.contract import Engine
from findleaks.engine.pointer_runs import Bounds
from findleaks.engine.records import Shape
from findleaks.engine.terms import State
from findleaks.engine.trees import TreeLayout
from findleaks.target.arch import Arch
from findleaks.target.base import Piece

BASE, COUNT = 0x50000000, 400


def make_memory(rng: random.Random, arch: Arch) -> list[int]:
    """Return random words: numbers, pointers to words, and pointers that are slightly wrong."""
    word = arch.word
    places = [BASE + word * n for n in range(COUNT)]
    odd = (0, 1, 3, arch.mask, arch.mask // 2 + 1, BASE + word * COUNT, BASE + word * COUNT - 1, BASE + 1)
    return [rng.choice((0, rng.choice(places) // 16 * 16, rng.choice(places), rng.choice(odd), rng.randrange(200))) for _ in range(COUNT)]


def follow_lists(engine: Engine, pieces: list[Piece], words: list[int], rng: random.Random) -> list[Any]:
    word, heads = engine.arch.word, [rng.choice(words) for _ in range(20)]
    mangled, offset = rng.random() < 0.3, word * rng.randrange(-1, 3)
    within = [bound for head in heads for bound in (BASE, BASE + 8 * rng.randrange(COUNT))] if rng.random() < 0.5 else []
    found: list[Any] = [engine.follow(pieces, head, offset, mangled, 50) for head in heads]
    found += [engine.follow_all(pieces, heads, offset, 50, within)]
    found += [engine.gather(pieces, [head & engine.arch.mask for head in heads], 3 * word)]
    return found


def run_searches(engine: Engine, pieces: list[Piece], words: list[int], rng: random.Random) -> list[Any]:
    low, values = rng.choice(words), sorted(set(rng.choices(words, k=9)))
    word = engine.arch.word
    own = [engine.self_pointers(p, rng.randrange(-2, 3) * word, rng.choice((0, 2 * word))) for p in pieces]
    each = [(of, engine.search(p, low, low + 300), engine.search_any(p, values)) for p, of in zip(pieces, own)]
    return [[list(one) for one in found] for found in each]


def walk_nodes(engine: Engine, pieces: list[Piece], words: list[int], rng: random.Random) -> list[Any]:
    word, heads = engine.arch.word, [rng.choice(words) for _ in range(5)]
    links = engine.walk_links(pieces, heads, [0, word], 100, rng.randrange(1, 30))
    tree = engine.walk_tree(pieces, heads[0], heads[1], TreeLayout(0, 1, 2, 3, 4, rng.choice((1, 4))), 100)
    while not links.step(7):
        pass
    while not tree.step(7):
        pass
    return [links.result(), tree.result()]


def read_records(engine: Engine, pieces: list[Piece], words: list[int], rng: random.Random) -> list[Any]:
    word, shapes = engine.arch.word, {0: Shape(0x7), 1: Shape(0x7, (engine.arch.word,)), 3: Shape(0xFF, ())}
    made = engine.records(shapes, 3)
    numbers = []
    for piece in pieces:
        start = -(-piece.address // word) * word
        if (count := (piece.address + len(piece.data) - start) // (3 * word)) > 0:
            numbers.append(list(made.read(piece, array("Q", [start, 3 * word, count, 0]))))
    return [numbers, made.keys(), made.counts(), made.left]


def find_runs(engine: Engine, pieces: list[Piece], words: list[int], rng: random.Random) -> list[Any]:
    blocks = engine.blocks(engine.arch, 16)
    starts = range(BASE, BASE + engine.arch.word * COUNT - 32, 32)
    blocks.append(starts, [24] * len(starts), [rng.choice((State.IN_USE, State.IN_USE, State.FREE)) for _ in starts])
    blocks.seal()
    search = blocks.pointer_runs(Bounds(starts[0], starts[-1] + 32, rng.randrange(1, 5), rng.choice((0, 16, 64))))
    return [run for piece in pieces for run in search.read(piece)] + search.finish()


def read_chunks(engine: Engine, pieces: list[Piece], words: list[int], rng: random.Random) -> list[Any]:
    word, end = engine.arch.word, BASE + engine.arch.word * COUNT
    blocks = engine.blocks(engine.arch, 2 * word)
    found: list[Any] = [walk_chunks(blocks, pieces[0], BASE, end)]
    found += [sound_chunks(engine, piece, -(-piece.address // 16) * 16, end, rng.randrange(3), 0) for piece in pieces]
    blocks.seal()
    return [*found, [(blocks.address(i), blocks.size(i), blocks.state(i)) for i in range(len(blocks))]]


LOOPS: dict[str, Callable[[Engine, list[Piece], list[int], random.Random], list[Any]]] = {
    "lists": follow_lists,
    "searches": run_searches,
    "woods": walk_nodes,
    "records": read_records,
    "runs": find_runs,
    "chunks": read_chunks,
}


@pytest.mark.parametrize("loop", LOOPS)
@given(seed=st.integers(0, 2**32 - 1), arch=st.sampled_from(graphs.ARCHES))
@settings(max_examples=graphs.share(60), deadline=None)
def test_both_engines_agree(loop: str, seed: int, arch: Arch) -> None:
    words = make_memory(random.Random(seed), arch)
    data = arch.pack(words)
    pieces = graphs.cut(BASE, data, random.Random(seed), random.Random(seed).choice((arch.word, 16, 1)))
    native, pure = (LOOPS[loop](engine, pieces, words, random.Random(seed)) for engine in (graphs.native(arch), graphs.pure(arch)))
    assert native == pure


@pytest.mark.parametrize("loop", LOOPS)
def test_each_loop_finds_something(loop: str) -> None:
    """In each variant, different memory gives different results. Otherwise two engines that find nothing would also agree."""
    for arch in graphs.ARCHES:
        found = []
        for seed in range(10):
            words = make_memory(random.Random(seed), arch)
            pieces = graphs.cut(BASE, arch.pack(words), random.Random(seed), arch.word)
            found.append(repr(LOOPS[loop](graphs.native(arch), pieces, words, random.Random(seed))))
        assert len(set(found)) == len(found)
