"""Words by which a runtime chains its objects are no references: both engines leave out the same, and nothing else."""

from __future__ import annotations

import random

import graphs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def references(engine: graphs.Engine, heap: graphs.Heap, links: bytearray) -> list[list[tuple[int, bool]]]:
    blocks = engine.blocks(graphs.X86_64, heap.granule)
    blocks.append([b.start for b in heap.blocks], [b.size for b in heap.blocks], [b.state for b in heap.blocks])
    graph = engine.graph(blocks)
    graph.exclude_links(links)
    for piece in heap.pieces:
        graph.scan_blocks(piece)
    graph.settle()
    return [graph.references(index) for index in range(len(heap.blocks))]


@given(seed=st.integers(0, 2**32 - 1), count=st.sampled_from((4, 30, 60)), granule=st.sampled_from((8, 16)))
@settings(max_examples=80)
def test_both_engines_leave_out_these_words(seed: int, count: int, granule: int) -> None:
    heap = graphs.random_heap(seed, count, granule, 3, 1.0)
    rng = random.Random(seed)
    links = bytearray(rng.choice((0, 0, 16, 32, 255)) for _ in heap.blocks)
    said = references(graphs.kernel(), heap, links)
    assert said == references(graphs.pure(), heap, links)
    oracle = graphs.Oracle(heap)
    for index, (block, end) in enumerate(zip(heap.blocks, links)):
        expected = []
        for address in range(-(-block.start // 8) * 8, block.end - 7, 8) if block.state == 0 else ():
            target = oracle.target(oracle.word(address))
            if target and target[0] != index and end != 255 and not (end and end - 16 <= address - block.start < end):
                expected.append(target)
        assert said[index] == expected


@pytest.mark.parametrize("engine", [graphs.kernel, graphs.pure])
def test_a_byte_for_each_block(engine: type) -> None:
    heap = graphs.random_heap(1, 30, 16, 2)
    with pytest.raises(ValueError, match="blocks"):
        references(engine(), heap, bytearray(len(heap.blocks) + 1))
