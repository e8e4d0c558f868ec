"""Trend of a figure over several moments: growth that goes on, that has ended, or comes and goes.

The rate is the Theil-Sen estimator: the median of the slopes between pairs of points, which a few
outliers do not move. Its error is Sen's 95 % interval, from the variance of Kendall's S under no
trend (P. K. Sen, "Estimates of the regression coefficient based on Kendall's tau", Journal of the
American Statistical Association 63, 1968, section 4). Above MAX_PAIRED points only the pairs
half a series apart are taken, which is Theil's incomplete method.

What goes on is decided by the floor: the lowest value of each third of the series. A saw-tooth
comes back to its floor, a warm-up has a floor that rises at first only, and a leak's floor rises to
the end. A warm-up may take more than a third of the series: where nothing swings, the floor of the
last quarter must rise as well.
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
MIN_INTERVAL = 5
"""Points from which on an interval of 95 % exists: the extreme of Kendall's S comes up by chance in
2 of 5! orders."""
MIN_QUARTERED = 8
"""Points that are enough for four parts."""
MIN_LATE_PART = 0.25
"""Of the floor's rise from part to part before: what the last part must add for the growth to go
on."""
MIN_RISE, MIN_TURN = 0.05, 0.1
"""Of the difference between the highest and the lowest value: what the floor must rise by, and what
a turn up or down must be to count. The rest may be noise."""
MIN_SWING = 3.0
"""A saw-tooth's way up and down is at least this many times what remains of it."""
Z_95 = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""


class Trend(enum.Enum):
    """How a figure went on. TWO_POINTS: there are too few moments
    to say, or it is not known at one of them."""

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
    first, middle, last = floors(values, 3)
    extent = max(values) - min(values)
    if extent <= flat:
        return Trend.FLAT
    net, swing = values[-1] - values[0], _swing(values, max(flat, MIN_TURN * extent))
    early, late = middle - first, last - middle
    ended = swing < MIN_SWING * abs(net) and _ended(values)
    rises = late > flat and late >= MIN_LATE_PART * abs(early) and last - first >= MIN_RISE * extent
    end = values[2 * len(values) // 3 :]
    if early <= flat and len(end) > 1:  # still at first: a single step up is no growth that goes on
        before, after = floors(end, 2)
        rises = rises and after - before >= MIN_LATE_PART * late
    if rises and not ended:
        return Trend.GROWING
    if max(abs(net), last - first) > flat and swing < MIN_SWING * abs(net):
        return Trend.PLATEAU if net > 0 else Trend.FALLING
    return Trend.SAWTOOTH


def floors(values: Sequence[float], parts: int) -> list[float]:
    """The lowest value of each part of the series; the parts are as long as can be, the last ones
    the longest."""
    count = len(values)
    return [min(values[count * part // parts : count * (part + 1) // parts]) for part in range(parts)]


def _swing(values: Sequence[float], turn: float) -> float:
    """The ways up and down, added; a way that is shorter than `turn` does not count."""
    total, low, high, start = 0.0, values[0], values[0], values[0]
    rising = falling = False
    for value in values:
        low, high = min(low, value), max(high, value)
        if not falling and high - value >= turn:
            total += high - start if rising else 0.0
            start, low, rising, falling = high, value, False, True
        elif not rising and value - low >= turn:
            total += start - low if falling else 0.0
            start, high, rising, falling = low, value, True, False
    return total + (high - start if rising else start - low if falling else 0.0)


def _ended(values: Sequence[float]) -> bool:
    """Whether the last quarter's floor hardly rises, compared with the quarters before."""
    if len(values) < MIN_QUARTERED:
        return False
    first, _, third, last = floors(values, 4)
    return last - third < MIN_LATE_PART * (third - first) / 2


def rate(times: Sequence[float], values: Sequence[float]) -> Optional[Rate]:
    """The rate a second; None where all moments have the same time."""
    slopes = sorted(_slopes(times, values))
    if not slopes:
        return None
    spread = _interval(len(values), len(slopes))
    return Rate(median(slopes), slopes[max(spread.start, 0)], slopes[min(spread.stop, len(slopes)) - 1])


def _slopes(times: Sequence[float], values: Sequence[float]) -> list[float]:
    count = len(times)
    if count <= MAX_PAIRED:
        pairs = ((i, j) for i in range(count) for j in range(i + 1, count))
    else:
        pairs = ((i, i + count // 2) for i in range(count - count // 2))
    return [(values[j] - values[i]) / (times[j] - times[i]) for i, j in pairs if times[j] > times[i]]


def _interval(points: int, slopes: int) -> range:
    """The slopes, by rank from 0, of Sen's interval: it begins with the M1-th smallest and ends
    with the (M2 + 1)-th, where M1 and M2 are half of (slopes - width) and of (slopes + width)."""
    deviation = math.sqrt(points * (points - 1) * (2 * points + 5) / 18)
    if points > MAX_PAIRED:  # independent pairs: the ranks of a binomial distribution's middle
        deviation = math.sqrt(slopes)
    width = Z_95 * deviation
    return range(math.floor((slopes - width) / 2) - 1, math.ceil((slopes + width) / 2) + 1)
