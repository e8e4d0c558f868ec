"""Bytes of blocks inside ranges, and gaps between blocks: C engine, Python reference engine and the plain definition."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable

import graphs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.engine.contract import Engine
from findleaks.engine.terms import State
from findleaks.target.arch import X86_64
from findleaks.target.base import Range
from findleaks.target.ranges import subtract

BASE = 0x7F0000000000


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=graphs.share(200))
def test_bytes_in_ranges_are_counted(seed: int) -> None:
    rng = random.Random(seed)
    blocks, at = [], BASE
    for _ in range(rng.randrange(60)):
        at += 16 * rng.choice((0, 1, 1, 3, 300, 70_000))
        size = rng.choice((0, 1, 24, 40, 4000, 9000, 1 << 20, 1 << 33))
        blocks.append((at, size, rng.choice(list(State))))
        at += max(size + 15 & -16, 16)
    spots = sorted({rng.choice([a, a + s, a + s // 2, BASE - 64, at + 64]) + rng.randrange(-20, 20) for a, s, _ in blocks * 2})
    ranges = [Range(low, high) for low, high in zip(spots, spots[1:])][rng.randrange(2) :: rng.choice((1, 2))]
    expected = [0] * len(State)
    for start, size, state in blocks:
        expected[state] += sum(max(0, min(end, start + size) - max(low, start)) for low, end in ranges)
    for engine in (graphs.native(), graphs.pure()):
        made = engine.blocks(X86_64, 16)
        made.append([a for a, _, _ in blocks], [s for _, s, _ in blocks], [int(state) for _, _, state in blocks])
        made.seal()
        assert made.bytes_in(array("Q", [bound for each in ranges for bound in each])) == expected
        for start, end in ranges[:20]:
            for least in (1, 4096):
                assert made.gaps(start, end, least) == gaps(blocks, start, end, least)


def gaps(blocks: list[tuple[int, int, State]], start: int, end: int, least: int) -> list[Range]:
    """Return, by definition, the parts of [start, end) that are in no block."""
    left = subtract([Range(start, end)], [Range(low, low + size) for low, size, _ in blocks])
    return [each for each in left if each.end - each.start >= least]


@pytest.mark.parametrize("engine", [graphs.native, graphs.pure])
def test_no_blocks_and_odd_ranges(engine: Callable[[], Engine]) -> None:
    made = engine().blocks(X86_64, 16)
    with pytest.raises(RuntimeError):
        made.bytes_in(array("Q"))
    with pytest.raises(RuntimeError):
        made.gaps(0, 1, 1)
    made.seal()
    assert made.bytes_in(array("Q", [0, (1 << 64) - 1, 5, 5])) == [0] * len(State)
    assert made.gaps(16, 4096, 1) == [Range(16, 4096)]
    assert made.gaps(16, 4096, 4096) == made.gaps(16, 16, 0) == made.gaps(32, 16, 1) == []
