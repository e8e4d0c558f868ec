"""Find the trend of a figure over several snapshots: growth that continues, growth that has ended,
or a saw-tooth.

The rate is the Theil-Sen estimator: the median of the slopes between pairs of points. A few
outliers do not change it. Its error is Sen's 95 % interval, from the variance of Kendall's S under
no trend (P. K. Sen, "Estimates of the regression coefficient based on Kendall's tau", Journal of
the American Statistical Association 63, 1968, section 4). For more than MAX_PAIRED points, only
pairs that are half a series apart are used (Theil's incomplete method).

The floor shows whether growth continues. It is the lowest value of each third of the series. A
saw-tooth returns to its floor. The floor of a warm-up rises only at first. The floor of a leak
rises until the end. A warm-up may take more than a third of the series. Therefore, if there is no
saw-tooth, the floor of the last quarter must rise as well."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple, Optional

MAX_PAIRED = 64
"""Up to this many points, all pairs are used."""
MIN_POINTS = 3
"""Fewest points for a trend. Fewer points give only a difference."""
MIN_INTERVAL = 5
"""Fewest points for a 95 % interval. The extreme value of Kendall's S occurs by chance in 2 of 5!
orders."""
MIN_QUARTERED = 8
"""Fewest points for a division into four parts."""
MIN_LATE_PART = 0.25
"""Growth continues only if the last rise of the floor is at least this fraction of its previous
rise."""
MIN_RISE, MIN_TURN = 0.05, 0.1
"""The floor must rise by the fraction MIN_RISE of the difference between the highest and the lowest
value. A turn counts only if it is the fraction MIN_TURN of this difference. Smaller changes may be
noise."""
MIN_SWING = 3.0
"""In a saw-tooth, the sum of all rises and falls is at least this many times the remaining
growth."""
Z_95 = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""


class Trend(enum.Enum):
    """The trend of a figure. TWO_POINTS: there are too few snapshots for a trend, or the figure is
    unknown in one of them."""

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
    """Return the trend of these values, which are in the order of time. Differences of at most
    `flat` are ignored."""
    if len(values) < MIN_POINTS:
        return Trend.TWO_POINTS
    first, middle, last = floors(values, 3)
    extent = max(values) - min(values)
    if extent <= flat:
        return Trend.FLAT
    net, swing = values[-1] - values[0], _swing(values, max(flat, MIN_TURN * extent))
    early, late = middle - first, last - middle
    ended = swing < MIN_SWING * abs(net) and _has_ended(values)
    rises = late > flat and late >= MIN_LATE_PART * abs(early) and last - first >= MIN_RISE * extent
    end = values[2 * len(values) // 3 :]
    # The series began flat. A single step up is not continuing growth.
    if early <= flat and len(end) > 1:
        before, after = floors(end, 2)
        rises = rises and after - before >= MIN_LATE_PART * late
    if rises and not ended:
        return Trend.GROWING
    if max(abs(net), last - first) > flat and swing < MIN_SWING * abs(net):
        return Trend.PLATEAU if net > 0 else Trend.FALLING
    return Trend.SAWTOOTH


def floors(values: Sequence[float], parts: int) -> list[float]:
    """Return the lowest value of each part of the series. If the parts differ in length, the last
    ones are the longest."""
    count = len(values)
    return [min(values[count * part // parts : count * (part + 1) // parts]) for part in range(parts)]


def _swing(values: Sequence[float], turn: float) -> float:
    """Return the sum of all rises and falls. Those smaller than `turn` are ignored."""
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


def _has_ended(values: Sequence[float]) -> bool:
    """Whether the floor of the last quarter hardly rises, compared with the quarters before."""
    if len(values) < MIN_QUARTERED:
        return False
    first, _, third, last = floors(values, 4)
    return last - third < MIN_LATE_PART * (third - first) / 2


def rate(times: Sequence[float], values: Sequence[float]) -> Optional[Rate]:
    """Return the rate per second; None if all points have the same time."""
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
    """Return the range of ranks, from 0, whose ends are the slopes at the ends of Sen's interval:
    the M1-th and the (M2 + 1)-th smallest slope. M1 is half of (slopes - width), and M2 is half of
    (slopes + width)."""
    deviation = math.sqrt(points * (points - 1) * (2 * points + 5) / 18)
    # For independent pairs, the ranks come from the middle of a binomial distribution.
    if points > MAX_PAIRED:
        deviation = math.sqrt(slopes)
    width = Z_95 * deviation
    return range(math.floor((slopes - width) / 2) - 1, math.ceil((slopes + width) / 2) + 1)
