"""Nodes that are reachable from given nodes by links: the C engine and the reference engine agree, on intact and on
damaged chains and trees."""

from __future__ import annotations

import random

import graphs
import pytest

from findleaks.engine import links
from findleaks.engine.contract import Engine
from findleaks.target.base import Piece

BASE, SIZE = 0x10000, 32
Answer = tuple[list[int], bool]


def make_nodes(rng: random.Random, count: int, heads: int, offsets: list[int]) -> tuple[bytearray, list[int]]:
    """Return memory with `count` nodes that are reachable from `heads` nodes by links at these offsets, and the addresses of the heads."""
    memory = bytearray(SIZE * count + 64)
    places = [BASE + SIZE * n for n in range(count)]
    rng.shuffle(places)
    free = [place + offset for place in places[:heads] for offset in offsets]
    for place in places[heads:]:
        put(memory, free.pop(rng.randrange(len(free))), place)
        free += [place + offset for offset in offsets]
    return memory, places[:heads]


def put(memory: bytearray, address: int, word: int) -> None:
    memory[address - BASE : address - BASE + 8] = word.to_bytes(8, "little")


def compute_expected(memory: bytes, heads: list[int], offsets: list[int], run: int) -> list[int]:
    """Return the nodes of intact memory: level by level, and in each part of a level link by link."""
    found, level = [], heads
    while level:
        found += level
        below = []
        for first in range(0, len(level), run):
            for offset in offsets:
                places = [node + offset - BASE for node in level[first : first + run]]
                below += [int.from_bytes(memory[place : place + 8], "little") for place in places]
        level = [node for node in below if node]
    return found


def walk_nodes(engine: Engine, pieces: list[Piece], heads: list[int], offsets: list[int], most: int, deepest: int, budget: int) -> Answer:
    walk = engine.walk_links(pieces, heads, offsets, most, deepest)
    while not walk.step(budget):
        pass
    nodes, sound = walk.result()
    return list(nodes), sound


@pytest.mark.parametrize("offsets", [[0], [8], [16, 0], [0, 8, 24]], ids=str)
def test_intact_nodes_are_complete_and_in_order(offsets: list[int]) -> None:
    for seed in range(10):
        rng = random.Random(seed)
        count = rng.choice((1, 2, 10, 200))
        memory, heads = make_nodes(rng, count, rng.randrange(1, count + 1), offsets)
        pieces = graphs.cut(BASE, bytes(memory), rng)
        order = compute_expected(memory, heads, offsets, links.RUN)
        assert len(order) == count
        for engine in (graphs.native(), graphs.pure()):
            for budget in graphs.slices():
                assert walk_nodes(engine, pieces, heads, offsets, count, 0, budget) == (order, True)
            assert walk_nodes(engine, pieces, heads, offsets, count - 1, 0, 7) == (order[:-1], False)


def test_levels_are_counted() -> None:
    memory = bytearray(SIZE * 50)
    for n in range(49):
        put(memory, BASE + SIZE * n, BASE + SIZE * (n + 1))
    pieces = [Piece(BASE, bytes(memory))]
    for engine in (graphs.native(), graphs.pure()):
        assert walk_nodes(engine, pieces, [BASE], [0], 100, 50, 3)[1]
        assert walk_nodes(engine, pieces, [BASE], [0], 100, 49, 3) == ([BASE + SIZE * n for n in range(50)], False)
        assert walk_nodes(engine, pieces, [], [0], 100, 1, 3) == ([], True)
        assert walk_nodes(engine, pieces, [BASE, 0, BASE], [0], 100, 0, 3) == ([BASE], False)


def test_a_level_longer_than_a_run() -> None:
    """The C engine and the reference engine divide a level into parts of the same length."""
    count = links.RUN + 1000
    heads = [BASE + 16 * n for n in range(count)]
    memory = bytearray(16 * (count + 2 * len(heads[::500])))
    for number, head in enumerate(heads[::500]):
        put(memory, head, BASE + 16 * (count + 2 * number))
        put(memory, head + 8, BASE + 16 * (count + 2 * number + 1))
    order = compute_expected(memory, heads, [0, 8], links.RUN)
    for engine in (graphs.native(), graphs.pure()):
        assert walk_nodes(engine, [Piece(BASE, bytes(memory))], heads, [0, 8], len(order), 0, 1 << 20) == (order, True)


def test_engines_agree_on_damaged_nodes() -> None:
    sound = 0
    for seed in range(100):
        rng = random.Random(seed)
        offsets = rng.choice(([0], [8], [0, 16]))
        memory, heads = make_nodes(rng, 60, rng.randrange(1, 20), offsets)
        places = [BASE + SIZE * n for n in range(60)]
        for _ in range(rng.choice((1, 1, 5))):
            word = rng.choice((0, rng.choice(places), rng.choice(places) + 5, rng.getrandbits(64), BASE + len(memory) - 4, (1 << 64) - 8))
            put(memory, rng.choice(places) + rng.choice(offsets), word)
        pieces = graphs.cut(BASE, bytes(memory), rng)
        answers = [walk_nodes(engine, pieces, heads, offsets, 100, 30, 13) for engine in (graphs.native(), graphs.pure())]
        assert answers[0] == answers[1]
        assert len(set(answers[0][0])) == len(answers[0][0]) <= 100
        sound += answers[0][1]
    assert 5 < sound < 95
