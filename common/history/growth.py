"""What grew between moments: each figure as a series, ranked by the bytes it grew by.

Figures are matched by section and name. A figure that a moment lacks is 0 then, if the moment has
the section at all. The rows that are ranked do not overlap: lost groups, what each root holds (its
field, where one field explains most of the root's growth), and the shares of resident memory that
are no blocks in use. So their sum is, nearly, what the process grew by; the rest is `others`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Optional

from findleaks.history.moment import Moment
from findleaks.history.trend import Rate, Trend, rate, trend

MIN_BYTES, MIN_PART = 64 << 10, 0.01
"""A figure has grown if it grew by more than MIN_BYTES, and by MIN_PART of what there was."""
MIN_COUNT = 16
"""The same for figures without bytes: handles, threads."""
EXPLAINS = 0.8
"""Part of a root's growth from which on a field of it is named in its stead."""
HOUR = 3600.0

Key = tuple[str, str, str]
"""Section, within, name."""


class Series(NamedTuple):
    """One figure at every moment: its counts and its bytes (None where a moment does not say)."""

    key: Key
    counts: list[Optional[int]]
    bytes: list[Optional[int]]
    note: str

    @property
    def values(self) -> list[int]:
        """What is compared: its bytes, or its counts where it has none."""
        chosen = self.bytes if any(value is not None for value in self.bytes) else self.counts
        return [value or 0 for value in chosen]

    @property
    def delta(self) -> int:
        return self.values[-1] - self.values[0]


@dataclass(frozen=True)
class Grown:
    """A series that changed, with its trend, and its rate an hour where the times are known."""

    series: Series
    trend: Trend
    per_hour: Optional[Rate]


def all_series(moments: Sequence[Moment]) -> dict[Key, Series]:
    """The figures of all moments by key."""
    found: dict[Key, Series] = {}
    present = [{figure.section for figure in moment.figures} for moment in moments]
    for at, moment in enumerate(moments):
        for figure in moment.figures:
            key = figure.section, figure.within, figure.name
            series = found.get(key)
            if series is None:
                blank: list[Optional[int]] = [0 if figure.section in there else None for there in present]
                counts = list(blank) if figure.count is not None else [None] * len(moments)
                sizes = list(blank) if figure.bytes is not None else [None] * len(moments)
                series = found[key] = Series(key, counts, sizes, figure.note)
            series.counts[at], series.bytes[at] = figure.count, figure.bytes
    return found


def grown(moments: Sequence[Moment]) -> list[Grown]:
    """Rows that do not overlap, those that grew most first; then those that shrank."""
    series = all_series(moments)
    times = [moment.time for moment in moments]
    rows = [one for one in [*_lost(series), *_held(series), *_shares(series)] if any(one.values)]
    return sorted((_judged(one, times) for one in rows), key=lambda row: -row.series.delta)


def _judged(series: Series, times: Sequence[Optional[float]]) -> Grown:
    values = series.values
    least = max(MIN_BYTES, MIN_PART * values[0]) if any(series.bytes) else MIN_COUNT
    if len(values) < 3:
        kind = Trend.TWO_POINTS if abs(series.delta) > least else Trend.FLAT
    else:
        kind = trend(values, least)
    known = [time for time in times if time is not None]
    slope = rate(known, values) if len(known) == len(values) else None
    return Grown(series, kind, Rate(*(value * HOUR for value in slope)) if slope is not None else None)


def _lost(series: dict[Key, Series]) -> Iterator[Series]:
    return (one for key, one in series.items() if key[0] == "lost")


def _shares(series: dict[Key, Series]) -> Iterator[Series]:
    """The shares of resident memory but for blocks in use, which roots and leaks divide among them."""
    return (one for key, one in series.items() if key[0] == "share" and not key[2].endswith("in-use"))


def _held(series: dict[Key, Series]) -> Iterator[Series]:
    """Each root, or the one field of it that explains its growth."""
    fields: dict[str, list[Series]] = {}
    for key, one in series.items():
        if key[0] in ("field", "container"):
            fields.setdefault(key[1], []).append(one)
    for key, root in series.items():
        if key[0] == "root":
            inside = [one for one in fields.get(key[2], ()) if one.delta >= EXPLAINS * root.delta]
            # The innermost that still explains it: fields follow their parents, containers their fields.
            yield inside[-1] if inside and root.delta > MIN_BYTES else root
