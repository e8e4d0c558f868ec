"""Samples of the blocks in use: the C engine and the reference engine compared with the definition, and the statistics with all blocks."""

from __future__ import annotations

import random
from array import array
from typing import Any

import graphs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.engine.sampling import COLUMNS, LARGE, level_of, mix, probability, thin_out
from findleaks.target.arch import X86_64

SEEDS = st.integers(0, 2**32 - 1)


def directory(engine: Any, granule: int, blocks: list[graphs.Block]) -> Any:
    made = engine.blocks(X86_64, granule)
    made.append([b.start for b in blocks], [b.size for b in blocks], [b.state for b in blocks])
    made.seal()
    return made


def sample_by_definition(blocks: list[graphs.Block], most: int) -> tuple[int, list[tuple[int, int, int]]]:
    rows = [(b.start, b.size, level_of(b.start, b.size)) for b in blocks if b.state == 0]
    level = next(level for level in range(200) if sum(own >= level for _, _, own in rows) <= most)
    return level, [row for row in rows if row[2] >= level]


def test_the_hash_is_splitmix() -> None:
    """The first numbers of splitmix64 from seed 0, whose state is increased by the golden ratio, as Vigna's C program prints them."""
    gamma = 0x9E3779B97F4A7C15
    assert [hex(mix(n * gamma % 2**64)) for n in (1, 2, 3)] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]


@given(
    seed=SEEDS,
    granule=st.sampled_from((4, 8, 16, 32, 4096)),
    count=st.sampled_from((3, 40, 900)),
    most=st.sampled_from((0, 1, 7, 100, 5000)),
)
@settings(max_examples=graphs.share(50), deadline=None)
def test_engines(seed: int, granule: int, count: int, most: int) -> None:
    rng = random.Random(seed)
    blocks, _ = graphs.random_blocks(rng, count, granule, 6)
    first, last = sorted((rng.randrange(len(blocks) + 2), rng.randrange(len(blocks) + 2)))
    whole, part = sample_by_definition(blocks, most), sample_by_definition(blocks[first:last], most)
    for engine in (graphs.native(), graphs.pure()):
        made = directory(engine, granule, blocks)
        level, rows = made.sample(most)
        assert (level, list(zip(rows[::COLUMNS], rows[1::COLUMNS], rows[2::COLUMNS]))) == whole
        level, rows = made.sample(most, first, last)
        assert (level, rows[::COLUMNS].tolist()) == (part[0], [start for start, _, _ in part[1]])


@given(seed=SEEDS, slice_=st.sampled_from((1, 50, 333)), most=st.sampled_from((1, 40, 5000)))
@settings(max_examples=graphs.share(20), deadline=None)
def test_slices_give_the_sample_of_all(seed: int, slice_: int, most: int) -> None:
    made, _ = graphs.random_blocks(random.Random(seed), 400, 16, 4)
    for engine in (graphs.native(), graphs.pure()):
        blocks = directory(engine, 16, made)
        found = 0, array("Q")
        for first in range(0, len(blocks), slice_):
            found = blocks.sample(most, first, first + slice_, found)
        assert found == blocks.sample(most)
        assert blocks.sample(most // 2, 0, 0, found) == thin_out(found[1], found[0], most // 2) == blocks.sample(most // 2)


def test_before_it_is_sealed() -> None:
    for engine in (graphs.native(), graphs.pure()):
        with pytest.raises(RuntimeError, match="not sealed"):
            engine.blocks(X86_64, 16).sample(5)


def test_probability() -> None:
    """The fraction of many blocks in the sample is the probability that it states. For large blocks, it is larger than for small ones."""
    rng = random.Random(5)
    for size, level in ((24, 6), (LARGE - 1, 6), (LARGE, 6), (5 * LARGE, 7), (64 * LARGE, 6)):
        chance = probability(size, level)
        found = sum(level_of(0x7F0000000000 + rng.getrandbits(40) * 16, size) >= level for _ in range(10_000))
        assert abs(found - 10_000 * chance) <= 4 * (10_000 * chance * (1 - chance)) ** 0.5
    assert (probability(24, 6), probability(LARGE, 6), probability(64 * LARGE, 6)) == (1 / 64, 1 / 32, 1)
