"""Edges to the values of properties that are outside of objects, among the other edges of a heap snapshot."""

from __future__ import annotations

import random
from array import array

import pytest

from findleaks.runtimes.v8.far_properties import EdgeInserter


@pytest.mark.parametrize("seed", range(20))
def test_edges_follow_those_of_their_object(seed: int) -> None:
    state = random.Random(seed)
    counts = array("I", [state.choice((0, 0, 1, 2, 5)) for _ in range(50)])
    own = [[(3, 100 * index + at, 7) for at in range(count)] for index, count in enumerate(counts)]
    extra = sorted((state.randrange(50), state.randrange(9), state.randrange(1000)) for _ in range(state.choice((0, 1, 30, 100))))
    flat = [number for edges in own for edge in edges for number in edge]
    inserter = EdgeInserter(counts, extra[::-1], 2)
    expected: list[int] = []
    for index, edges in enumerate(own):
        expected += [number for edge in edges for number in edge]
        expected += [number for source, name, node in extra if source == index for number in (2, name, 7 * node)]
        assert inserter.add_counts()[index] == counts[index] + sum(source == index for source, _, _ in extra)
    # A part can end anywhere, also between two edges of one object.
    ends = sorted({3 * state.randrange(len(flat) // 3 + 1) for _ in range(8)} | {len(flat)})
    parts = [array("I", flat[start:end]) for start, end in zip([0, *ends], ends) if end > start]
    assert [number for part in inserter.insert(iter(parts)) for number in part] == expected
