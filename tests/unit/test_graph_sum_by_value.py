"""Distinct values and how often they occur: the C engine and the reference engine agree."""

from __future__ import annotations

import random
from array import array

import graphs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

TOP = (1 << 64) - 1
VALUES = st.one_of(st.integers(0, TOP), st.integers(0, 5), st.sampled_from([0, 1 << 63, TOP, 1 << 33]))


@settings(max_examples=graphs.share(200), deadline=None)
@given(st.lists(st.tuples(VALUES, st.integers(0, TOP)), max_size=60), st.booleans())
def test_engines_agree(rows: list[tuple[int, int]], weighed: bool) -> None:
    values, weights = array("Q", [value for value, _ in rows]), array("Q", [weight for _, weight in rows] if weighed else [])
    given_ = values[:], weights[:]
    made, reference = graphs.native().sum_by_value(values, weights), graphs.pure().sum_by_value(values, weights)
    assert made == reference
    assert (values, weights) == given_
    assert made[0].tolist() == sorted(set(values))


def test_many_values() -> None:
    rng = random.Random(3)
    values = array("Q", [rng.choice((0x7F00_0000_0000, 0)) + 8 * rng.randrange(3000) for _ in range(50_000)])
    distinct, sums = graphs.native().sum_by_value(values, array("Q"))
    assert sum(sums) == len(values)
    assert (distinct, sums) == graphs.pure().sum_by_value(values, array("Q"))


def test_one_weight_for_each_value() -> None:
    for engine in (graphs.native(), graphs.pure()):
        with pytest.raises(ValueError, match="1 weights for 2 values"):
            engine.sum_by_value(array("Q", [1, 2]), array("Q", [1]))
