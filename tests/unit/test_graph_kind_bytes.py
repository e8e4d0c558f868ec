"""Figures of blocks in use by kind, and their bytes inside ranges: C engine, Python reference engine and the plain definition."""

from __future__ import annotations

import random
from array import array
from collections import Counter

import graphs
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.engine.terms import Kind, KindFigures, State
from findleaks.target.arch import Arch


@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.sampled_from((1, 6, 30)),
    granule=st.sampled_from((4, 8, 16)),
    arch=st.sampled_from(graphs.MOSTLY_64),
)
@settings(max_examples=graphs.share(100))
def test_figures_by_kind_inside_ranges(seed: int, count: int, granule: int, arch: Arch) -> None:
    rng = random.Random(seed)
    heap = graphs.random_heap(seed, count, granule, 3, arch=arch)
    bounds = {rng.choice((block.start, block.end, block.start + block.size // 2)) for block in heap.blocks}
    spots = sorted({min(max(spot + rng.randrange(-20, 20), 0), arch.mask) for spot in bounds} | {0, 0x500000})
    ranges = list(zip(spots, spots[1:]))[rng.randrange(2) :: rng.choice((1, 2))]
    some = array("I", rng.sample(range(len(heap.blocks)), rng.randrange(len(heap.blocks) + 1)))
    flat = array("Q", [bound for each in ranges for bound in each])
    for engine in (graphs.native(arch), graphs.pure(arch)):
        graph = graphs.graph_of(engine, heap)
        for kind in Kind:
            sizes = [block.size for i, block in enumerate(heap.blocks) if block.state == State.IN_USE and graph.kind(i) == kind]
            assert graph.sizes(kind) == sorted(Counter(sizes).items())
        for chosen in (range(len(heap.blocks)), some):
            expected = [KindFigures(0, 0, 0)] * len(Kind)
            for index in chosen:
                block, kind = heap.blocks[index], graph.kind(index)
                inside = sum(max(0, min(end, block.end) - max(start, block.start)) for start, end in ranges)
                if block.state == State.IN_USE:
                    own = expected[kind]
                    expected[kind] = KindFigures(own.blocks + 1, own.bytes + block.size, own.inside + inside)
            assert graph.figures_by_kind(array("I", chosen), flat) == expected
            assert graph.figures_by_kind(array("I", chosen), array("Q")) == [figures._replace(inside=0) for figures in expected]
        everything = graph.figures_by_kind(array("I", range(len(heap.blocks))), flat)
        assert graph.bytes_by_kind(flat) == [figures.inside for figures in everything]
