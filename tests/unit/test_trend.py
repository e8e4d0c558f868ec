"""Trends of synthetic series, and the Theil-Sen estimator compared with a simple one."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from findleaks.history.trend import MAX_PAIRED, Rate, Trend, rate, trend

FLAT = 1_000.0
"""1 % of what there is."""
COUNTS = (10, 24, 100, 500)
Level = Callable[[float], float]


def leak(at: float) -> float:
    return 20_000 * at


def warm_up(at: float) -> float:
    """The value is constant after half of the time."""
    return 20_000 * min(1.0, 2 * at)


def slow_warm_up(at: float) -> float:
    """Each step covers a part of the remaining distance."""
    return 20_000 * (1 - math.exp(-8 * at))


def still(at: float) -> float:
    return 5_000.0


def saw_tooth(at: float) -> float:
    """Five periods."""
    return 20_000 * (5 * at % 1.0)


def leak_under_saw_tooth(at: float) -> float:
    return saw_tooth(at) + 20_000 * at


def make_series(level: Level, count: int, noise: float = 0.0, seed: int = 1) -> list[float]:
    """Return `count` points of a series, with Gaussian noise of this standard deviation."""
    random_ = random.Random(seed)
    return [100_000 + level(at / (count - 1)) + random_.gauss(0, noise) for at in range(count)]


SHAPES = [
    (leak, Trend.GROWING),
    (warm_up, Trend.PLATEAU),
    (slow_warm_up, Trend.PLATEAU),
    (still, Trend.FLAT),
    (saw_tooth, Trend.SAWTOOTH),
    (leak_under_saw_tooth, Trend.GROWING),
]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("level", "kind"), SHAPES)
def test_shape(level: Level, kind: Trend, count: int) -> None:
    assert trend(make_series(level, count), FLAT) == kind


@pytest.mark.parametrize(("level", "kind"), SHAPES)
def test_shape_in_noise(level: Level, kind: Trend) -> None:
    """Random noise does not change the result."""
    for count, seed in itertools.product(COUNTS, range(20)):
        assert trend(make_series(level, count, 100.0, seed), FLAT) == kind, (count, seed)


def test_falling_series() -> None:
    assert trend([5000.0, 4000, 3000, 2000, 1000], FLAT) == Trend.FALLING
    assert trend(make_series(lambda at: -leak(at), 24, 200.0), FLAT) == Trend.FALLING


def test_few_points() -> None:
    assert trend([1.0, 1000.0], 64) == Trend.TWO_POINTS
    assert trend([0.0, 1000, 2000], 64) == Trend.GROWING
    assert trend([0.0, 1000, 1000], 64) == Trend.PLATEAU
    assert trend([0.0, 1000, 1010], 64) == Trend.PLATEAU
    assert trend([0.0, 1000, 0], 64) == Trend.SAWTOOTH
    assert trend([0.0, 10, 20], 64) == Trend.FLAT


@pytest.mark.parametrize("count", COUNTS)
def test_a_leak_that_begins_late(count: int) -> None:
    """A series that was constant, and grows at the end, is not a plateau."""
    for seed, begin in itertools.product(range(10), (0.25, 0.5)):
        assert trend(make_series(lambda at, begin=begin: 20_000 * max(0.0, at - begin), count, 50.0, seed), FLAT) == Trend.GROWING


@pytest.mark.parametrize("at", range(1, 9))
def test_one_step_is_a_plateau(at: int) -> None:
    assert trend([1000.0] * at + [9000.0] * (10 - at), 64) == Trend.PLATEAU


def test_saw_tooth_much_higher_than_the_growth() -> None:
    """The minimum rises by 20 in each period, whose amplitude is 200."""
    values = [1000.0 + 20 * (at // 4) + (0, 100, 200, 60)[at % 4] for at in range(40)]
    assert trend(values, 16) == Trend.GROWING
    assert trend([1000.0 + (0, 100, 200, 60)[at % 4] for at in range(40)], 16) == Trend.SAWTOOTH


def compute_plainly(times: list[float], values: list[float]) -> Rate:
    """Compute all slopes. Return their median, and the slopes number M1 and M2 + 1: P. K. Sen 1968, section 4, as in M.
    Hollander and D. A. Wolfe, Nonparametric Statistical Methods, 1973, chapter 9.3."""
    slopes = sorted((b - a) / (u - t) for (t, a), (u, b) in itertools.combinations(zip(times, values), 2))
    points = len(times)
    width = 1.959964 * (points * (points - 1) * (2 * points + 5) / 18) ** 0.5
    first, last = (len(slopes) - width) / 2, (len(slopes) + width) / 2
    low = max(math.floor(first), 1)
    high = min(math.ceil(last) + 1, len(slopes))
    return Rate(median(slopes), slopes[low - 1], slopes[high - 1])


@given(st.lists(st.integers(-(10**9), 10**9), min_size=2, max_size=MAX_PAIRED), st.randoms(use_true_random=False))
def test_rate_is_the_median_of_all_slopes(values: list[int], random_: random.Random) -> None:
    times = list(itertools.accumulate(random_.choice((1.0, 2.0, 60.0)) for _ in values))
    assert rate(times, values) == compute_plainly(times, [float(value) for value in values])


@given(st.lists(st.integers(-(10**6), 10**6), min_size=3, max_size=100))
def test_interval_holds_the_slope_and_is_symmetrical(values: list[int]) -> None:
    times = [float(at) for at in range(len(values))]
    found, mirrored = rate(times, values), rate(times, [-value for value in values])
    assert found is not None and mirrored is not None
    assert found.low <= found.slope <= found.high
    assert mirrored == Rate(-found.slope, -found.high, -found.low)


@pytest.mark.parametrize("count", [8, 20, MAX_PAIRED, MAX_PAIRED + 1, 200])
def test_interval_covers_the_true_slope(count: int) -> None:
    """The interval contains the slope in at least 95 of 100 cases. With few points, it contains the slope more often,
    because its bounds are ranks."""
    times, covered, runs = [60.0 * at for at in range(count)], 0, 300
    for seed in range(runs):
        random_ = random.Random(seed)
        found = rate(times, [5.0 * at + random_.gauss(0, 400) for at in times])
        assert found is not None
        covered += found.low <= 5.0 <= found.high
    assert 0.92 * runs <= covered <= 0.99 * runs


@pytest.mark.parametrize("count", [20, 200])
def test_outliers_do_not_move_the_rate(count: int) -> None:
    times = [float(at) for at in range(count)]
    values = [1000.0 + 7 * at for at in times]
    for at in range(3, count, 10):
        values[at] += 10**9
    found = rate(times, values)
    assert found is not None
    assert found.slope == pytest.approx(7, rel=0.01)


def test_no_rate_without_time() -> None:
    assert rate([5.0, 5.0, 5.0], [1, 2, 3]) is None
    assert rate([5.0, 5.0, 6.0], [1, 2, 4]) is not None
