"""One heap, encoded with words of 4 and 8 bytes in both byte orders: the C engine and the reference engine agree, and
the result is the same for each encoding."""

from __future__ import annotations

import random
from array import array
from typing import Any

import graphs
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.allocators.glibc.engine import sound_chunks, walk_chunks
from findleaks.engine.contract import Engine
from findleaks.engine.pointer_runs import Bounds
from findleaks.engine.records import Shape
from findleaks.engine.terms import State
from findleaks.engine.trees import TreeLayout
from findleaks.target.arch import Arch
from findleaks.target.base import Piece, Range

BASE, COUNT = 0x40000000, 512
SEEDS = st.integers(0, 2**32 - 1)


class Pointer(int):
    """The address of a word, given by the word's number."""


class EncodedMemory:
    """Words, some of them pointers, in the memory of a machine with this architecture."""

    def __init__(self, arch: Arch, words: list[int], cuts: list[int]) -> None:
        self.arch, self.word = arch, arch.word
        data = arch.pack([self.at(word) if isinstance(word, Pointer) else word & arch.mask for word in words])
        bounds = sorted({0, len(words), *cuts})
        self.pieces = [self.piece(data, low, high) for low, high in zip(bounds, bounds[1:])]
        self.whole = self.piece(data, 0, len(words))

    def piece(self, data: bytes, low: int, high: int) -> Piece:
        return graphs.piece(BASE + low * self.word, data[low * self.word : high * self.word])

    def at(self, number: int) -> int:
        return BASE + number * self.word

    def number(self, address: int) -> float:
        """Return the number of the word at an address. For an address outside of the memory, return the distance from the nearer end."""
        if address < BASE or address > self.arch.mask - BASE:
            return (address if address < BASE else address - self.arch.mask) + 0.1
        return (address - BASE) / self.word

    def numbers(self, addresses: Any) -> list[float]:
        return [self.number(address) for address in addresses]


def compute(ask: Any, words: list[int], cuts: list[int]) -> Any:
    """Return the results of `ask`. They must not depend on the engine or the encoding."""
    said = []
    for arch in graphs.ARCHES:
        image = EncodedMemory(arch, words, cuts)
        said += [ask(graphs.native(arch), image), ask(graphs.pure(arch), image)]
    assert all(one == said[0] for one in said), said
    return said[0]


def make_garbage(rng: random.Random) -> int:
    return rng.choice((0, 1, 5, 0x10, 0x11, 8 * rng.getrandbits(6), Pointer(rng.randrange(COUNT)), Pointer(COUNT), -1, -16))


def describe(problem: str) -> list[str]:
    """Return the text of a problem without addresses."""
    return [word for word in problem.split() if not word.startswith("0x")]


def make_cuts(rng: random.Random) -> list[int]:
    return [rng.randrange(COUNT) for _ in range(rng.randrange(4))]


@given(seed=SEEDS)
@settings(max_examples=graphs.share(30), deadline=None)
def test_lists_trees_and_links(seed: int) -> None:
    rng = random.Random(seed)
    words = [make_garbage(rng) for _ in range(COUNT)]
    nodes = [8 * number for number in rng.sample(range(COUNT // 8 - 1), rng.randrange(2, 40))]
    for node, after, parent in zip(nodes, [*nodes[1:], 0], [0, *nodes]):
        words[node : node + 5] = [Pointer(after), Pointer(parent), 0, 1, Pointer(after)]
    words[nodes[-1]] = words[nodes[-1] + 4] = 0
    if rng.random() < 0.5:
        words[rng.choice(nodes) + rng.choice((0, 1, 4))] = make_garbage(rng)

    def ask(engine: Engine, image: EncodedMemory) -> Any:
        size, heads = image.word, [image.at(nodes[0]), 0, image.at(nodes[1])]
        single, why = engine.follow(image.pieces, heads[0], 0, False, 1000)
        both, ends, problems = engine.follow_all(image.pieces, heads, 0, 100, [image.at(0), image.at(COUNT)] * 3)
        tree = engine.walk_tree(image.pieces, heads[0], image.at(0), TreeLayout(2, 4, 1, 3, 5, size), 1000)
        links = engine.walk_links(image.pieces, heads[:1], [0, 4 * size], 1000)
        while not (tree.step(7) and links.step(7)):
            pass
        walked, broken = tree.result()
        met, sound = links.result()
        kinds = describe(why), [(number, describe(what)) for number, what in problems], describe(broken), sound
        return kinds, image.numbers(single), image.numbers(both), list(ends), image.numbers(walked), image.numbers(met)

    assert compute(ask, words, [8 * (cut // 8) for cut in make_cuts(rng)])[1][0] == nodes[0]


@given(seed=SEEDS)
@settings(max_examples=graphs.share(20), deadline=None)
def test_mangled_lists(seed: int) -> None:
    rng = random.Random(seed)
    nodes = rng.sample(range(COUNT - 4), rng.randrange(2, 40))
    for arch in graphs.ARCHES:
        places = [BASE + node * arch.word for node in nodes]
        words = [0] * COUNT
        for node, after in zip(nodes, [*places[1:], 0]):
            words[node + 2] = after ^ (BASE + (node + 2) * arch.word) >> 12
        for engine in (graphs.native(arch), graphs.pure(arch)):
            found, why = engine.follow([graphs.piece(BASE, arch.pack(words))], places[0], 2 * arch.word, True, 1000)
            overwritten = set(nodes) & {node + 2 for node in nodes}
            assert overwritten or (list(found), why) == (places, "")


@given(seed=SEEDS)
@settings(max_examples=graphs.share(40), deadline=None)
def test_chunks(seed: int) -> None:
    """Sizes are in words. Flags are bits, whatever the size of a word is."""
    rng = random.Random(seed)
    sizes, free = [], []
    while sum(sizes) < COUNT - 40:
        sizes.append(2 * rng.randrange(2, 12))
        free.append(rng.random() < 0.3 and not (free and free[-1]))
    damaged = {rng.randrange(len(sizes)): rng.choice((0, 1, 2, 6, 400)) for _ in range(rng.randrange(2))}

    def ask(engine: Engine, image: EncodedMemory) -> Any:
        size, words, at = image.word, [0] * COUNT, 0
        for number, (length, behind_free) in enumerate(zip([*sizes, 4], [False, *free])):
            words[at : at + 2] = [sizes[number - 1] * size if behind_free else 77, damaged.get(number, length) * size | (not behind_free)]
            at += length
        memory = EncodedMemory(image.arch, words, [])
        end, blocks, steps = image.at(sum(sizes)), engine.blocks(image.arch, 2 * size), []
        chunk = BASE
        while True:
            step = walk_chunks(blocks, memory.whole, chunk, end)
            steps.append((image.number(step.chunk), step.done, step.unsure, describe(step.problem)[-1:]))
            chunk = step.chunk
            if not step.unsure:
                break
        sound = sound_chunks(engine, memory.whole, BASE, end, 1, 0)
        blocks.seal()
        found = [(image.number(blocks.address(i)), blocks.size(i) // size, blocks.state(i)) for i in range(len(blocks))]
        return steps, found, image.number(sound.chunk), sound.headers, image.numbers(sound.free)

    steps, found, _, _, _ = compute(ask, [], [])
    if not damaged:
        assert steps[-1][1]
        assert [state == State.FREE for _, _, state in found] == free


@given(seed=SEEDS)
@settings(max_examples=graphs.share(20), deadline=None)
def test_searches(seed: int) -> None:
    rng = random.Random(seed)
    words = [make_garbage(rng) if rng.random() < 0.5 else Pointer(rng.randrange(COUNT)) for _ in range(COUNT)]
    for number in rng.sample(range(COUNT - 2), 20):
        words[number] = words[number + 2] = Pointer(number)
    low, high = sorted(rng.sample(range(COUNT), 2))
    values = [rng.randrange(COUNT) for _ in range(20)]
    found_by: dict[tuple[str, str], array[int]] = {}  # the first words of most blocks of a page

    def ask(engine: Engine, image: EncodedMemory) -> Any:
        size = image.word
        blocks = engine.blocks(image.arch, 2 * size)
        blocks.append([image.at(number) for number in range(0, COUNT, 16)], [10 * size] * (COUNT // 16), [0] * (COUNT // 16))
        blocks.seal()
        runs = blocks.pointer_runs(Bounds(image.at(0), image.at(COUNT), 3, 2 * size))
        arrays = [run for piece in image.pieces for run in runs.read(piece)] + runs.finish()
        found, weights = array("Q", bytes(8 * 8)), array("Q", bytes(8 * 8))
        where, types = Range(image.at(0), image.at(COUNT)), [Range(image.at(low), image.at(high))]
        for piece in image.pieces:
            blocks.page_words(piece, types, where, 4096, found, weights)
        searched = [engine.search(piece, image.at(low), image.at(high)) for piece in image.pieces]
        any_of = [engine.search_any(piece, [image.at(value) for value in values]) for piece in image.pieces]
        own = [engine.self_pointers(piece, 2 * size) for piece in image.pieces]
        numbers = [[image.numbers(part) for part in parts] for parts in (searched, any_of, own)]
        assert all(not one or image.at(low) <= one < image.at(high) for one in found)
        found_by[engine.name, image.arch.name] = found
        return numbers, [(image.number(run[0]), image.number(run[1]), run[2]) for run in arrays]

    compute(ask, words, make_cuts(rng))
    for arch in graphs.ARCHES:
        assert found_by["native", arch.name] == found_by[graphs.pure(arch).name, arch.name]


@given(seed=SEEDS)
@settings(max_examples=graphs.share(20), deadline=None)
def test_records(seed: int) -> None:
    rng = random.Random(seed)
    words = [rng.randrange(8) | rng.choice((0, 0xF8)) for _ in range(COUNT)]

    def ask(engine: Engine, image: EncodedMemory) -> Any:
        size = image.word
        shapes = {0: Shape(0x7), 1: Shape(0x7, (size,)), 3: Shape(0xFF, (size, 3 * size))}
        records = engine.records(shapes, 7)
        numbers = records.read(image.whole, array("Q", [image.at(0), 5 * size, 50, 0, image.at(300), 4 * size, 20, 1 << 20]))
        return list(numbers), list(records.keys()), list(records.counts())

    compute(ask, words, [])
