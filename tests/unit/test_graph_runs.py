"""Runs of equal blocks, counts by size, copies between indexes of blocks, many lists and many records: C engine,
reference engine and the plain definition."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from typing import Any

import graphs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.engine.contract import Engine
from findleaks.engine.terms import Size, State, run_states
from findleaks.target.arch import X86_64

ENGINES = [graphs.native, graphs.pure]
SEEDS = st.integers(0, 2**32 - 1)
BASE = 0x7F0000001000


def make_engines() -> list[Engine]:
    return [graphs.native(), graphs.pure()]


def list_blocks(blocks: Any) -> list[tuple[int, int, State]]:
    return [(blocks.address(i), blocks.size(i), blocks.state(i)) for i in range(len(blocks))]


def make_random_runs(rng: random.Random, granule: int) -> tuple[array[int], bytes, list[tuple[int, int, State]]]:
    """Return runs, their bitmap, and the blocks that they describe."""
    bits = rng.randbytes(rng.randrange(1, 60))
    runs: array[int] = array("Q")
    expected = []
    at = rng.choice((granule, 0x10000, BASE, 0xFFFFFFFF0000))
    for _ in range(rng.randrange(8)):
        at += granule * rng.choice((0, 0, 1, 7, 100_000))
        stride = granule * rng.choice((1, 1, 2, 3, 40, 300))
        size = rng.choice((stride, stride, stride - 1, 0, 1))
        bit = rng.randrange(len(bits) * 8)
        count = rng.randrange(min(70, len(bits) * 8 - bit) + 1)
        clear, set_ = rng.choice(list(State)), rng.choice(list(State))
        runs.extend((at, stride, size, count, bit, run_states(clear, set_)))
        for i in range(count):
            on = bits[(bit + i) // 8] >> (bit + i) % 8 & 1
            expected.append((at + i * stride, size, set_ if on else clear))
        if count:
            at += count * stride
    return runs, bits, expected


@given(seed=SEEDS, granule=st.sampled_from((4, 8, 16)))
@settings(max_examples=graphs.share(150))
def test_runs_equal_their_blocks(seed: int, granule: int) -> None:
    runs, bits, expected = make_random_runs(random.Random(seed), granule)
    for engine in make_engines():
        blocks = engine.blocks(X86_64, granule)
        blocks.append_runs(runs, bits)
        blocks.seal()
        assert list_blocks(blocks) == expected
        for address, size, _ in expected[:20]:
            assert blocks.find(address + max(size - 1, 0)) == blocks.find(address) >= 0


BAD = [
    ([BASE, 16, 16, 4, 0, 0, BASE + 48, 16, 16, 1, 0, 0], b""),  # begins inside the run before
    ([BASE + 8, 16, 16, 1, 0, 0], b""),  # not a multiple of the granule
    ([BASE, 24, 16, 2, 0, 0], b""),  # the second block is not at a multiple of the granule
    ([BASE, 16, 17, 2, 0, 0], b""),  # blocks that overlap
    ([BASE, 0, 0, 2, 0, 0], b""),
    ([BASE, 16, 16, 9, 0, 0x200], b"\0"),  # more blocks than bits
    ([BASE, 16, 16, 1, 8, 0x200], b"\0"),
    ([BASE, 16, 16, 1, (1 << 64) - 1, 0x200], b"\0"),
    ([BASE, 16, 16, 1, 0, 4], b""),  # an invalid state
    ([BASE, 16, 16, 1, 0, 0x400], b"\0"),
    ([BASE, 16, 16, 1, 0, 0x10000], b"\0"),
    ([BASE, 16, 16, (1 << 64) - 1, 0, 0], b""),  # ends after the last address
    ([BASE, 1 << 63, 16, 5, 0, 0], b""),
    ([BASE, 16, (1 << 64) - 1, 1, 0, 0], b""),
    ([BASE, 16, 16, 1, 0], b""),  # half a run
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("runs", "bits"), BAD)
def test_invalid_runs_are_refused_completely(engine: type, runs: list[int], bits: bytes) -> None:
    blocks = engine().blocks(X86_64, 16)
    with pytest.raises(ValueError, match="run"):
        blocks.append_runs(array("Q", [0x1000, 16, 16, 3, 0, 0, *runs]), bits)
    assert len(blocks) == 0
    blocks.append_runs(array("Q", [0x1000, 16, 16, 3, 0, 0, 0x500, 0, 0, 0, 99, 0x300]))  # a run of 0 blocks has no effect
    assert len(blocks) == 3
    with pytest.raises(ValueError, match="above the previous block"):
        blocks.append_runs(array("Q", [0x1020, 16, 16, 1, 0, 0]))


@given(seed=SEEDS, granule=st.sampled_from((8, 16)))
@settings(max_examples=graphs.share(80))
def test_counts_by_size(seed: int, granule: int) -> None:
    rng = random.Random(seed)
    heap = graphs.random_heap(seed, 300, granule, 4)
    near = (0, (1 << 64) - 1, *(max(b.start + rng.choice((-1, 0, 1)), 0) for b in heap.blocks))
    edges = array("Q", sorted(rng.choice(near) for _ in range(2 * rng.randrange(20))))
    inside = [b for b in heap.blocks if any(low <= b.start < high for low, high in zip(edges[::2], edges[1::2]))]
    for engine in make_engines():
        blocks = engine.blocks(X86_64, granule)
        blocks.append([b.start for b in heap.blocks], [b.size for b in heap.blocks], [b.state for b in heap.blocks])
        blocks.seal()
        assert sum(n for _, _, n in blocks.by_size()) == len(heap.blocks)
        counts = Counter((b.size, State(b.state)) for b in inside)
        fitting = [i for i, b in enumerate(heap.blocks) if b.state == State.IN_USE and 24 <= b.size <= 64]
        assert list(blocks.of_sizes(24, 64, 1 << 32)) == fitting
        assert list(blocks.of_sizes(24, 64, 3)) == fitting[:3]
        assert blocks.by_size(edges) == [Size(*key, n) for key, n in sorted(counts.items())]


@pytest.mark.parametrize("engine", ENGINES)
def test_many_sizes_are_counted(engine: type) -> None:
    blocks = engine().blocks(X86_64, 16)
    starts = list(range(BASE, BASE + 5000 * 0x2000, 0x2000))
    blocks.append(starts, list(range(5000)), [0] * 5000)
    blocks.append([starts[-1] + 0x10000], [1 << 40], [2])
    blocks.seal()
    assert blocks.by_size() == [Size(n, State.IN_USE, 1) for n in range(5000)] + [Size(1 << 40, State.FREE, 1)]


@given(seed=SEEDS)
@settings(max_examples=graphs.share(60))
def test_blocks_are_copied(seed: int) -> None:
    rng = random.Random(seed)
    heap = graphs.random_heap(seed, 120, 16, 3)
    first, last = sorted((rng.randrange(len(heap.blocks) + 1), rng.randrange(len(heap.blocks) + 1))) if heap.blocks else (0, 0)
    for engine in make_engines():
        source, copy = engine.blocks(X86_64, 16), engine.blocks(X86_64, 8)
        source.append([b.start for b in heap.blocks], [b.size for b in heap.blocks], [b.state for b in heap.blocks])
        source.seal()
        copy.append_blocks(source, first, last)
        if first < last:
            with pytest.raises(ValueError, match="above"):
                copy.append_blocks(source, first, last)
        copy.append_blocks(source, last, len(heap.blocks))
        copy.seal()
        assert list_blocks(copy) == list_blocks(source)[first:]


@given(seed=SEEDS, offset=st.sampled_from((0, 8)))
@settings(max_examples=graphs.share(100))
def test_many_lists_at_once(seed: int, offset: int) -> None:
    """The result is that of `follow` for each list, intact or damaged."""
    rng = random.Random(seed)
    data = bytearray(0x2000)
    nodes = [BASE + 32 * i for i in rng.sample(range(0x1F00 // 32), 100)]
    heads = []
    while nodes:
        mine = [nodes.pop() for _ in range(min(len(nodes), rng.randrange(1, 30)))]
        last = rng.choice((0, 0, 0, 0, mine[0], BASE + 4, rng.getrandbits(64)))
        heads += [mine[0], *rng.choice(([], [0], [mine[-1]]))]
        for node, following in zip(mine, [*mine[1:], last]):
            data[node + offset - BASE : node + offset + 8 - BASE] = following.to_bytes(8, "little")
    pieces = tuple(graphs.cut(BASE, bytes(data), rng, 8))
    limit = rng.choice((3, 1000))
    for engine in make_engines():
        found = engine.follow_all(pieces, heads, offset, limit)
        at = 0
        for number, head in enumerate(heads):
            single, problem = engine.follow(pieces, head, offset, False, limit)
            assert found.nodes[at : found.ends[number]] == single
            assert dict(found.problems).get(number, "") == problem
            at = found.ends[number]
        assert at == len(found.nodes)
        assert engine.follow_all(pieces, [], offset, limit) == (array("Q"), array("Q"), [])


@given(seed=SEEDS)
@settings(max_examples=graphs.share(100))
def test_lists_with_bounds(seed: int) -> None:
    """A list ends before the first node that is outside of its bounds, whatever follows."""
    rng = random.Random(seed)
    data = bytearray(0x1000)
    heads, within, expected = [], [], []
    places = [BASE + 16 * i for i in rng.sample(range(0x1000 // 16), 0x1000 // 16)]
    for _ in range(rng.randrange(40)):
        nodes = [places.pop() for _ in range(rng.randrange(1, 7))]
        for node, after in zip(nodes, [*nodes[1:], 0]):
            data[node - BASE : node - BASE + 8] = after.to_bytes(8, "little")
        low, high = rng.choice(((BASE, BASE + 0x1000), (min(nodes), max(nodes) + 1), (min(nodes), max(nodes)), (nodes[0], nodes[-1] + 1)))
        stray = next((at for at, node in enumerate(nodes) if not low <= node < high), len(nodes))
        heads.append(nodes[0])
        within += [low, high]
        expected.append((nodes[:stray], f"the list leaves the pool, to {nodes[stray]:#x}" if stray < len(nodes) else ""))
    pieces = tuple(graphs.cut(BASE, bytes(data), rng, 16))
    for engine in make_engines():
        found = engine.follow_all(pieces, heads, 0, 1000, within)
        starts = [0, *found.ends]
        assert [list(found.nodes[low:high]) for low, high in zip(starts, found.ends)] == [nodes for nodes, _ in expected]
        assert found.problems == [(at, why) for at, (_, why) in enumerate(expected) if why]
        if heads:
            with pytest.raises(ValueError, match="bounds"):
                engine.follow_all(pieces, heads, 0, 1000, within[1:])


@given(seed=SEEDS, size=st.sampled_from((1, 7, 8, 96)))
@settings(max_examples=graphs.share(80))
def test_records_are_gathered(seed: int, size: int) -> None:
    rng = random.Random(seed)
    data = rng.randbytes(0x800)
    pieces = graphs.cut(BASE, data, rng, 1)
    if rng.random() < 0.4 and pieces:
        del pieces[rng.randrange(len(pieces))]
    near = [p.address + rng.choice((0, -1, len(p.data), len(p.data) - size, len(p.data) - size + 1)) for p in pieces]
    addresses = [*near, *(BASE + rng.randrange(0x820) for _ in range(30)), 0, (1 << 64) - 1]
    memory = {p.address + at: byte for p in pieces for at, byte in enumerate(p.data)}
    expected, missing = b"", []
    for number, address in enumerate(addresses):
        record = [memory.get(address + at) for at in range(size)]
        if None in record:
            missing.append(number)
        expected += bytes(size) if None in record else bytes(byte for byte in record if byte is not None)
    for engine in make_engines():
        assert engine.gather(tuple(pieces), addresses, size) == (bytearray(expected), missing)
        assert engine.gather(pieces, [], size) == (bytearray(), [])
