"""Render growth over time as one HTML page, from page.html, page.css and the scripts. For each
category, the page contains the values of the series that changed most. The size of the embedded
data is limited."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Optional

from findleaks.escaping import visible
from findleaks.formatting import printable
from findleaks.history.figure_series import Key, Series, all_series
from findleaks.history.growth import Grown, Growth
from findleaks.history.trend import Trend
from findleaks.report.pack import pack_series
from findleaks.report.page import fill_template, script_json

MAX_ROWS = 200
"""Maximum number of rows of a category. There are fewer if the page would be larger than
MAX_PAGE."""
MIN_ROWS = 8
MAX_PAGE = 3 << 20
"""Maximum size of the page in bytes, apart from MIN_ROWS of each category."""
MAX_SAMPLES = 2000
"""Maximum number of samples of a curve. If there are more, this many at equal distances are
used."""
_NAME, _LINE = 300, 2000  # most characters of a name and of a sentence
_LAST_DATE = 8e12  # seconds since 1970

TITLES = {
    "grew": "What grew",
    "share": "Resident memory",
    "mapping": "Mappings",
    "kind": "Kinds",
    "cache": "Size classes",
    "root": "Roots and fields",
    "type": "Types",
    "lost": "Lost",
    "runtime": "Runtimes",
    "handles": "Handles",
    "threads": "Threads",
    "descriptors": "Open descriptors",
}
"""Titles of the categories by the words of --by, in the order of the page. "grew" contains the rows
that explain the growth."""
STACKED = frozenset({"share", "mapping", "kind", "type", "lost", "threads"})
"""Categories whose rows do not overlap, so that their curves can be stacked."""
TRENDS = tuple(Trend)


class Words(NamedTuple):
    """Sentences on the page. `label` returns the name of a row."""

    headline: str
    findings: Sequence[str]
    differences: Sequence[str]
    warnings: Sequence[str]
    label: Callable[[Grown], str]


class _Category(NamedTuple):
    word: str
    rows: Sequence[Grown]  # by growth: those in bytes first, then those in counts
    rest: Sequence[Series]  # series that are left out


def render_html(growth: Growth, sections: Mapping[str, Sequence[str]], words: Words, opened: str = "") -> str:
    """Render the page. `sections`: the sections of figures that each category contains. `opened`:
    the category that is shown first, "" for the growth."""
    found, judged = _series(growth, sections), _Judged(growth)
    most = min(MAX_ROWS, max(len(growth.rows), *map(len, found.values())))
    while True:
        page = _page(growth, [_category(judged, word, series, most) for word, series in found.items()], most, words, opened or "grew")
        if len(page) <= MAX_PAGE or most <= MIN_ROWS:
            return page
        most = max(MIN_ROWS, int(0.9 * most * MAX_PAGE / len(page)))


class _Judged:
    """Trends and rates of series. Each is computed only once."""

    def __init__(self, growth: Growth) -> None:
        self._growth = growth
        self._rows: dict[Key, Grown] = {}

    def __call__(self, series: Series) -> Grown:
        found = self._rows.get(series.key)
        if found is None:
            found = self._rows[series.key] = self._growth.judge(series)
        return found


def _series(growth: Growth, sections: Mapping[str, Sequence[str]]) -> dict[str, list[Series]]:
    """Return series by category, those that changed most first."""
    known = {key[0] for key in growth.series}
    needed = frozenset(section for several in sections.values() for section in several) - known
    word_of = {section: word for word, several in sections.items() for section in several}
    found: dict[str, list[Series]] = {word: [] for word in [*TITLES, *sections] if word in sections}
    for one in [*growth.series.values(), *all_series(growth.snapshots, needed).values()]:
        if one.key[0] in word_of:
            found[word_of[one.key[0]]].append(one)
    for several in found.values():
        several.sort(key=_change, reverse=True)
    return found


def _change(series: Series) -> tuple[int, int]:
    values = series.values
    highest = max(values)
    return highest - min(values), highest


def _category(judged: _Judged, word: str, series: Sequence[Series], most: int) -> _Category:
    # Bytes and counts cannot be compared, so each gets a part of the rows.
    in_bytes = [one for one in series if one.in_bytes]
    counts = [one for one in series if not one.in_bytes]
    first = min(len(in_bytes), max(most // 2, most - len(counts)))
    kept = [*in_bytes[:first], *counts[: most - first]]
    rows = sorted(map(judged, kept), key=lambda row: (not row.series.in_bytes, -row.series.delta))
    return _Category(word, rows, [*in_bytes[first:], *counts[most - first :]])


class _Numbered:
    """The distinct series in all rows, each with a number."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self.series: list[Series] = []

    def __call__(self, series: Series) -> int:
        if id(series) not in self._numbers:
            self._numbers[id(series)] = len(self.series)
            self.series.append(series)
        return self._numbers[id(series)]


def _page(growth: Growth, categories: Sequence[_Category], most: int, words: Words, opened: str) -> str:
    number = _Numbered()
    ranked = sorted(growth.rows, key=lambda row: -abs(row.series.delta))
    grew = sorted(ranked[:most], key=lambda row: -row.series.delta)
    all_of = [_Category("grew", grew, [row.series for row in ranked[most:]]), *categories]
    count = len(growth.snapshots)
    picked = list(range(count)) if count <= MAX_SAMPLES else [at * (count - 1) // (MAX_SAMPLES - 1) for at in range(MAX_SAMPLES)]
    program = visible(growth.snapshots[-1].identity.program) or "the program"
    meta = {
        "title": printable(f"What grew: {program}", _NAME),
        "headline": printable(words.headline, _LINE),
        "findings": _lines(words.findings),
        "differences": _lines(words.differences),
        "warnings": _lines(words.warnings),
        "samples": [_sample(growth, at) for at in picked],
        "of": count,
        "times": _times(growth, picked),
        "start": _date(growth.snapshots[0].clock.time),
        "total": {"series": number(growth.total.series), "name": growth.total.series.key[2]},
        "trends": [one.value for one in TRENDS],
        "opened": opened,
        "categories": [_describe_row(one, words.label, number) for one in all_of if one.rows or one.word == "grew"],
        "series": [],
    }
    meta["series"] = [(any(_find_known(one.counts))) + 2 * one.in_bytes for one in number.series]
    columns = [column for one in number.series for column in (one.bytes, one.counts) if any(_find_known(column))]
    data = pack_series([column[at] for at in picked] for column in columns)
    made = {"TITLE": html.escape(visible(str(meta["title"]))), "META": script_json(meta), "DATA": data}
    return fill_template(os.path.dirname(os.path.abspath(__file__)), made)


def _find_known(values: Iterable[Optional[int]]) -> Iterable[bool]:
    return (value is not None for value in values)


def _lines(lines: Iterable[str]) -> list[str]:
    return [printable(line, _LINE) for line in list(lines)[:50]]


def _sample(growth: Growth, at: int) -> list[object]:
    """Return the name, the number (the first is 1), and the time of a snapshot."""
    one = growth.snapshots[at]
    return [printable(one.name, 100), at + 1, _date(one.clock.time)]


def _date(time: Optional[float]) -> Optional[float]:
    """Return a time that a script can show; None for other values. JSON has no infinity, and dates
    of scripts end in the year 275760."""
    return round(time, 3) if time is not None and abs(time) < _LAST_DATE else None


def _times(growth: Growth, picked: Sequence[int]) -> Optional[list[float]]:
    """Return seconds since the first snapshot. Returns None if a time is unknown or precedes an
    earlier one, or if all times are equal."""
    times = growth.times
    if times is None or not 0 < times[-1] - times[0] < _LAST_DATE or any(after < before for before, after in zip(times, times[1:])):
        return None
    return [round(times[at] - times[0], 3) for at in picked]


def _describe_row(one: _Category, label: Callable[[Grown], str], number: _Numbered) -> dict[str, object]:
    left = [series for series in one.rest if series.in_bytes]
    return {
        "word": one.word,
        "title": TITLES.get(one.word, one.word.capitalize()),
        "stacked": one.word in STACKED,
        "rows": [_row(row, label, number) for row in one.rows],
        "rest": [len(one.rest), sum(series.values[0] for series in left), sum(series.values[-1] for series in left)],
    }


def _row(row: Grown, label: Callable[[Grown], str], number: _Numbered) -> list[object]:
    """Return the columns label, section, within, name, note, number of the series, number of the
    trend, rate per hour with its interval, and the growth inside the row."""
    section, within, name = (printable(word, _NAME) for word in row.series.key)
    hour = None if row.per_hour is None or not all(map(math.isfinite, row.per_hour)) else [round(value, 3) for value in row.per_hour]
    inside = [[printable(part.key[2], _NAME), number(part)] for part in row.inside]
    text = printable(label(row), _NAME)
    return [text, section, within, name, printable(row.series.note, _NAME), number(row.series), TRENDS.index(row.trend), hour, inside]
