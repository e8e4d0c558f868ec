"""Words that a runtime uses internally are not references: both engines leave out the same words, and no others."""

from __future__ import annotations

import random

import graphs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.engine.terms import EVERY_WORD, NO_HEADER, Exclusion

EXCLUSIONS = (
    Exclusion(0),
    Exclusion(EVERY_WORD),
    Exclusion(0b1100),
    Exclusion(1 << 63),
    Exclusion(1, 0b110, 0),
    Exclusion(0, EVERY_WORD, 8),
    Exclusion(0b101, 0b010, 8, 3),
)


def references(engine: graphs.Engine, heap: graphs.Heap, patterns: bytearray) -> list[list[tuple[int, bool]]]:
    blocks = engine.blocks(graphs.X86_64, heap.granule)
    blocks.append([b.start for b in heap.blocks], [b.size for b in heap.blocks], [b.state for b in heap.blocks])
    graph = engine.graph(blocks)
    graph.exclude_words(patterns, EXCLUSIONS)
    for piece in heap.pieces:
        graph.scan_blocks(piece)
    graph.settle()
    return [graph.references(index) for index in range(len(heap.blocks))]


@given(seed=st.integers(0, 2**32 - 1), count=st.sampled_from((4, 30, 60)), granule=st.sampled_from((8, 16)))
@settings(max_examples=graphs.share(80))
def test_both_engines_leave_out_these_words(seed: int, count: int, granule: int) -> None:
    heap = graphs.random_heap(seed, count, granule, 3, 1.0)
    rng = random.Random(seed)
    patterns = bytearray(rng.randrange(len(EXCLUSIONS)) for _ in heap.blocks)
    found = references(graphs.native(), heap, patterns)
    assert found == references(graphs.pure(), heap, patterns)
    oracle = graphs.Oracle(heap)
    for index, (block, pattern) in enumerate(zip(heap.blocks, patterns)):
        expected = []
        for address in range(-(-block.start // 8) * 8, block.end - 7, 8) if block.state == 0 else ():
            target = oracle.target(oracle.word(address))
            if not target or target[0] == index:
                continue
            of, other = EXCLUSIONS[pattern], EXCLUSIONS[patterns[target[0]]]
            word = (address - block.start) // 8
            word = word % of.period if of.period else min(word, 63)
            is_link = of.links >> word & 1 and other.header == (oracle.word(address) - heap.blocks[target[0]].start) & -4
            if not of.words >> word & 1 and not is_link:
                expected.append(target)
        assert found[index] == expected


@pytest.mark.parametrize("engine", [graphs.native, graphs.pure])
def test_exclusions_must_fit(engine: type) -> None:
    heap = graphs.random_heap(1, 30, 16, 2)
    with pytest.raises(ValueError, match="blocks"):
        references(engine(), heap, bytearray(len(heap.blocks) + 1))
    with pytest.raises(ValueError, match="pattern 7"):
        references(engine(), heap, bytearray([7] * len(heap.blocks)))
    assert EXCLUSIONS[1].header == NO_HEADER
