"""Linked lists, pointers to themselves and searches: C engine, reference engine and the plain definition."""

from __future__ import annotations

import random
import struct
from array import array

import graphs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.allocators.bulk import search_ranges
from findleaks.target.base import Piece, Range

ENGINES = [graphs.native, graphs.pure]
SEEDS = st.integers(0, 2**32 - 1)
BASE = 0x7F0000001000


def list_in(data: bytearray, nodes: list[int], offset: int, mangled: bool, last: int = 0) -> None:
    for node, following in zip(nodes, [*nodes[1:], last]):
        place = node + offset
        data[place - BASE : place - BASE + 8] = (following ^ (place >> 12 if mangled else 0)).to_bytes(8, "little")


@given(seed=SEEDS, length=st.integers(0, 100), offset=st.sampled_from((0, 8, 16)), mangled=st.booleans())
@settings(max_examples=graphs.share(60))
def test_an_intact_list(seed: int, length: int, offset: int, mangled: bool) -> None:
    rng = random.Random(seed)
    data = bytearray(rng.randbytes(0x2000))
    nodes = [BASE + 32 * i for i in rng.sample(range(0x1F00 // 32), length)]
    list_in(data, nodes, offset, mangled)
    pieces = tuple(graphs.cut(BASE, bytes(data), rng, 32))
    for engine in (graphs.native(), graphs.pure()):
        head = nodes[0] if nodes else 0
        for limit in (length, length + 1, 1 << 40):
            assert engine.follow(pieces, head, offset, mangled, limit) == (array("Q", nodes), "")
        if length > 1:
            problem = f"more than {length - 1} nodes, the next is {nodes[-1]:#x}"
            assert engine.follow(pieces, head, offset, mangled, length - 1) == (array("Q", nodes[:-1]), problem)


@given(seed=SEEDS, mangled=st.booleans(), offset=st.sampled_from((0, 8, -8)))
@settings(max_examples=graphs.share(150))
def test_engines_agree_on_damaged_lists(seed: int, mangled: bool, offset: int) -> None:
    rng = random.Random(seed)
    data = bytearray(0x1000)
    nodes = [BASE + 64 + 32 * i for i in rng.sample(range(0xF00 // 32), rng.randrange(1, 40))]
    last = rng.choice((nodes[0], rng.choice(nodes), rng.getrandbits(64), BASE + 0x1000, BASE + 0xFFC, nodes[0] + 4, 8, (1 << 64) - 8))
    list_in(data, nodes, offset, mangled, last)
    pieces = graphs.cut(BASE, bytes(data), rng, rng.choice((8, 1)))
    if rng.random() < 0.3:
        del pieces[rng.randrange(len(pieces))]
    limit = rng.choice((0, 5, 1000))
    answer = graphs.native().follow(pieces, nodes[0], offset, mangled, limit)
    assert answer == graphs.pure().follow(pieces, nodes[0], offset, mangled, limit)
    assert len(set(answer[0])) == len(answer[0]) <= limit
    assert answer[1] or (offset, last) == (-8, BASE + 0x1000)


@given(seed=SEEDS, limit=st.sampled_from((3, 40, 1000)), bounded=st.booleans())
@settings(max_examples=graphs.share(60))
def test_lists_that_merge(seed: int, limit: int, bounded: bool) -> None:
    """Thousands of heads may lead to one list. Together they get at most as many nodes as there are words."""
    rng = random.Random(seed)
    data = bytearray(0x400)
    nodes = [BASE + 16 * number for number in rng.sample(range(0x40), 40)]
    list_in(data, nodes, 0, False, rng.choice((0, nodes[0], 8)))
    pieces = tuple(graphs.cut(BASE, bytes(data), rng, 8))
    heads = [rng.choice([*nodes, 0, BASE + 4]) for _ in range(200)]
    within = [word for _ in heads for word in (BASE, BASE + rng.choice((0x200, 0x400)))] if bounded else []
    one, other = (engine().follow_all(pieces, heads, 0, limit, within) for engine in ENGINES)
    assert one == other
    assert len(one.nodes) <= 0x80


@pytest.mark.parametrize("engine", ENGINES)
def test_reports_of_damaged_lists(engine: type) -> None:
    data = bytearray(0x100)
    nodes = [BASE, BASE + 0x20, BASE + 0x40]

    def problem(last: int) -> str:
        list_in(data, nodes, 0, False, last)
        found, why = engine().follow([graphs.piece(BASE, bytes(data))], BASE, 0, False, 10)
        assert list(found) == nodes
        return str(why)

    assert problem(BASE + 0x20) == f"the list has a cycle at {BASE + 0x20:#x} after 3 nodes"
    assert problem(BASE + 0x100) == f"node {BASE + 0x100:#x} cannot be read"
    assert problem(BASE + 0xF9) == f"node {BASE + 0xF9:#x} is misaligned"
    assert problem(0) == ""


@given(
    seed=SEEDS,
    distance=st.sampled_from((0, 8, 16, 16, -8, 4, 1 << 40, -(1 << 40))),
    before=st.sampled_from((0, 0, 16, 8)),
    step=st.sampled_from((8, 1)),
)
@settings(max_examples=graphs.share(60))
def test_self_pointers_and_searches(seed: int, distance: int, before: int, step: int) -> None:
    rng = random.Random(seed)
    base = rng.choice((0, BASE, (1 << 64) - 0x400))
    words = [rng.choice((0, 5, base + 8 * rng.randrange(128), base + 8 * i, base + 8 * max(0, i - 2))) for i in range(128)]
    low = rng.choice((0, base, base + 80, 3, -5))
    high = rng.choice((0, base + 0x100, base + 81, 6, 1 << 64, 1 << 65))
    for piece in graphs.cut(base, struct.pack("<128Q", *words), rng, step):
        inside = range(-(-piece.address // 8) * 8, piece.address + len(piece.data) - 7, 8)
        value = {address: words[(address - base) // 8] for address in inside}
        expected = [a for a in inside if value[a] == a - before == value.get(a + distance)]
        found = [a for a in inside if low <= value[a] < high]
        for engine in (graphs.native(), graphs.pure()):
            assert list(engine.self_pointers(piece, distance, before)) == expected
            assert list(engine.search(piece, low, high)) == found


BOUNDS = [(64, 96, 128, 160), (64, 96, 96, 160), (64, 128, 96, 160), (128, 160, 64, 96), (8, 40, BASE + 64, BASE + (1 << 20))]


@pytest.mark.parametrize("hits", [0, 1, 3, 200])
@pytest.mark.parametrize("bounds", BOUNDS)
def test_searches_in_several_ranges(hits: int, bounds: tuple[int, ...]) -> None:
    """Few or many words are inside the ranges or near them. The ranges are disjoint, adjacent, overlapping, unsorted,
    or contain the addresses of the piece."""
    values = [0, 63, 64, 95, 96, 100, 127, 128, 159, 160, BASE + 64, BASE]
    words = [0] * (2048 - hits) + [values[at % len(values)] for at in range(1, hits + 1)]
    ranges = [Range(*bounds[:2]), Range(*bounds[2:])]
    piece = Piece(BASE, memoryview(struct.pack("<2048Q", *words)))
    expected = [BASE + 8 * at for at, value in enumerate(words) for start, end in ranges if start <= value < end]
    for engine in (graphs.native(), graphs.pure()):
        assert list(search_ranges(engine, piece, ranges)) == expected
