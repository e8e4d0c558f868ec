"""Search trees, and look-ups of many addresses: the C engine and the reference engine agree, on intact and on damaged trees."""

from __future__ import annotations

import random
from array import array

import graphs
import pytest

from findleaks.engine.contract import Engine
from findleaks.engine.trees import TreeLayout
from findleaks.target.arch import X86_64
from findleaks.target.base import Piece

LAYOUT = TreeLayout(2, 3, 1, 0, 4, 1)
BASE, HEADER = 0x10000, 0x900000


def make_tree(rng: random.Random, count: int) -> tuple[bytearray, int, list[int]]:
    """Return memory with a random search tree of `count` nodes of 48 bytes, its root, and the nodes level by level."""
    memory = bytearray(48 * (count + 4))
    places = [BASE + 48 * n for n in range(count)]
    rng.shuffle(places)
    below: dict[int, list[int]] = {place: [0, 0] for place in places}
    parents = {places[0]: HEADER}
    for place in places[1:]:
        at = places[0]
        while True:
            side = rng.randrange(2)
            if not below[at][side]:
                below[at][side], parents[place] = place, at
                break
            at = below[at][side]
    level, order = [places[0]], []
    while level:
        order += level
        level = [child for node in level for child in below[node] if child]
    for place in places:
        for n, word in enumerate((1, parents[place], *below[place])):
            put(memory, place + 8 * n, word)
    return memory, places[0], order


def put(memory: bytearray, address: int, word: int) -> None:
    memory[address - BASE : address - BASE + 8] = (word & (1 << 64) - 1).to_bytes(8, "little")


def walk_nodes(engine: Engine, pieces: list[Piece], root: int, most: int, budget: int) -> tuple[list[int], str]:
    walk = engine.walk_tree(pieces, root, HEADER, LAYOUT, most)
    while not walk.step(budget):
        pass
    nodes, problem = walk.result()
    return list(nodes), problem


def test_intact_trees_are_complete_and_in_order() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        memory, root, order = make_tree(rng, rng.choice((1, 2, 10, 200)))
        pieces = graphs.cut(BASE, bytes(memory), rng)
        for engine in (graphs.native(), graphs.pure()):
            for budget in graphs.slices():
                assert walk_nodes(engine, pieces, root, 1000, budget) == (order, "")
            assert walk_nodes(engine, pieces, root, len(order) - 1, 7)[1] == f"more than {len(order) - 1:,} nodes"


def test_engines_agree_on_damaged_trees() -> None:
    problems = set()
    for seed in range(300):
        rng = random.Random(seed)
        memory, root, order = make_tree(rng, 60)
        for _ in range(rng.choice((1, 1, 5, 30))):
            word = rng.choice((0, 1, 2, rng.choice(order), rng.choice(order) + 4, rng.getrandbits(64), BASE + len(memory) - 8))
            put(memory, rng.choice(order) + 8 * rng.randrange(4), word)
        pieces = graphs.cut(BASE, bytes(memory), rng)
        answers = [walk_nodes(engine, pieces, root, 100, 13) for engine in (graphs.native(), graphs.pure())]
        assert answers[0] == answers[1]
        assert len(set(answers[0][0])) == len(answers[0][0]) <= 60
        problems.add(answers[0][1].split("0x")[0] + answers[0][1].split(" ", 2)[-1][:8] if answers[0][1] else "")
    assert len(problems) >= 4


def test_many_addresses_at_once() -> None:
    for seed in range(20):
        heap = graphs.random_heap(seed, 200, 16, 3)
        rng = random.Random(seed)
        asked = [rng.choice(heap.blocks).start + rng.choice((0, 0, 8, 4000, -1)) if heap.blocks else 5 for _ in range(100)]
        answers = []
        for engine in (graphs.native(), graphs.pure()):
            blocks = engine.blocks(X86_64, 16)
            blocks.append([b.start for b in heap.blocks], [b.size for b in heap.blocks], [b.state for b in heap.blocks])
            blocks.seal()
            indices, sizes = blocks.find_all(array("Q", asked))
            for address, index, size in zip(asked, indices, sizes):
                found = blocks.find(address)
                assert index == (found if found >= 0 else 0xFFFFFFFF)
                reported = (found, blocks.address(found), blocks.size(found), blocks.state(found)) if found >= 0 else None
                assert blocks.lookup(address) == reported
                assert size == (blocks.size(found) if found >= 0 else 0)
            labels = array("I", [0xFFFFFFFF]) * len(heap.blocks)
            mine = array("I", sorted({index for index in indices if index != 0xFFFFFFFF}))
            claimed = [blocks.claim(labels, mine, 3), blocks.claim(labels, mine[:1], 4), blocks.claim(labels, array("I", [0xFFFFFFFF]), 5)]
            answers.append((list(indices), list(sizes), list(labels), claimed))
            assert claimed == [True, not mine, False]
        assert answers[0] == answers[1]


@pytest.mark.parametrize("size", [1, 4])
def test_a_colour_is_in_the_first_bytes_of_its_word(size: int) -> None:
    """The other bytes of the word may have any value: padding is not initialised."""
    layout = TreeLayout(2, 3, 1, 0, 4, size)
    for arch in graphs.ARCHES:
        root, red, black = (BASE + 4 * arch.word * number for number in range(3))
        nodes = ((1, HEADER, red, black), (0, root, 0, 0), (1, root, 0, 0))
        data = b"".join(
            (colour.to_bytes(size, arch.byteorder) + b"\xa5" * (arch.word - size)) + arch.pack(links) for colour, *links in nodes
        )
        for engine in (graphs.native(arch), graphs.pure(arch)):
            walk = engine.walk_tree([graphs.piece(BASE, data)], root, HEADER, layout, 100)
            while not walk.step(10):
                pass
            found, problem = walk.result()
            assert (list(found), problem) == ([root, red, black], "")
