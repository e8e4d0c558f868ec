"""Trend of a figure over several moments: growth that goes on, that has ended, or comes and goes.

The rate is the Theil-Sen estimator: the median of the slopes between pairs of points, which a few
outliers do not move. Its error is Sen's 95 % interval, from the variance of Kendall's S under no
trend (P. K. Sen, "Estimates of the regression coefficient based on Kendall's tau", Journal of the
American Statistical Association 63, 1968, section 4). Above MAX_PAIRED points only the pairs
half a series apart are taken, which is Theil's incomplete method.

What goes on is decided by the floor: the lowest value of each third of the series. A saw-tooth
comes back to its floor, a warm-up has a floor that rises at first only, and a leak's floor rises to
the end.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple, Optional

MAX_PAIRED = 64
"""Points of which all pairs are taken."""
MIN_POINTS = 3
"""Points that are a trend, and not just a difference."""
MIN_LATE_PART = 0.25
"""Of the floor's rise from the first third to the second: the part that the last third must add
for the growth to go on."""
MIN_SWING = 3.0
"""A saw-tooth's way up and down is at least this many times what remains of it."""
Z_95 = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""


class Trend(enum.Enum):
    """How a figure went on. TWO_POINTS: there are too few moments to say."""

    TWO_POINTS = "unknown"
    GROWING = "growing"
    PLATEAU = "plateau"
    SAWTOOTH = "saw-tooth"
    FALLING = "falling"
    FLAT = "flat"


class Rate(NamedTuple):
    """A slope per second, and its 95 % interval."""

    slope: float
    low: float
    high: float


def trend(values: Sequence[float], flat: float = 0.0) -> Trend:
    """The trend of these values, in the order of time. Differences of at most `flat` are none."""
    if len(values) < MIN_POINTS:
        return Trend.TWO_POINTS
    first, middle, last = (min(part) for part in thirds(values))
    net, swing = values[-1] - values[0], sum(abs(b - a) for a, b in zip(values, values[1:]))
    if swing <= flat:
        return Trend.FLAT
    early, late = middle - first, last - middle
    if early > 0 and late > flat and late >= MIN_LATE_PART * early:
        return Trend.GROWING
    if max(abs(net), last - first) > flat and swing < MIN_SWING * abs(net):
        return Trend.PLATEAU if net > 0 else Trend.FALLING
    return Trend.SAWTOOTH if swing > MIN_SWING * flat else Trend.FLAT


def thirds(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float], Sequence[float]]:
    """The series in three parts, as equal as can be, the last not shorter than the others."""
    one, two = len(values) // 3, 2 * len(values) // 3
    return values[:one], values[one:two], values[two:]


def rate(times: Sequence[float], values: Sequence[float]) -> Optional[Rate]:
    """The rate a second; None where all moments have the same time."""
    slopes = sorted(_slopes(times, values))
    if not slopes:
        return None
    spread = _half_width(len(values), len(slopes))
    return Rate(median(slopes), slopes[max(spread.start, 0)], slopes[min(spread.stop, len(slopes)) - 1])


def _slopes(times: Sequence[float], values: Sequence[float]) -> list[float]:
    count = len(times)
    if count <= MAX_PAIRED:
        pairs = ((i, j) for i in range(count) for j in range(i + 1, count))
    else:
        pairs = ((i, i + count // 2) for i in range(count - count // 2))
    return [(values[j] - values[i]) / (times[j] - times[i]) for i, j in pairs if times[j] > times[i]]


def _half_width(points: int, slopes: int) -> range:
    """The slopes, by rank, within Sen's interval."""
    deviation = math.sqrt(points * (points - 1) * (2 * points + 5) / 18)
    if points > MAX_PAIRED:  # independent pairs: the ranks of a binomial distribution's middle
        deviation = math.sqrt(slopes)
    width = Z_95 * deviation
    return range(math.floor((slopes - width) / 2), math.ceil((slopes + width) / 2) + 1)
