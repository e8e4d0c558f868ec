"""Text of `diff`: what grew most, a table of what grew, and what to look at next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.commands import Invocation
from findleaks.escaping import visible
from findleaks.formatting import counted, number, size, table, wrapped
from findleaks.history.growth import Grown, Series
from findleaks.history.moment import Moment
from findleaks.history.trend import Trend

ROWS = 10
_WORDS = {Trend.PLATEAU: "has stopped", Trend.SAWTOOTH: "comes and goes", Trend.FALLING: "falls", Trend.FLAT: "", Trend.GROWING: "goes on"}


def text(moments: Sequence[Moment], rows: Sequence[Grown], differs: Sequence[str], limit: int, width: int, _: Invocation) -> Iterator[str]:
    """All lines of the text."""
    first, last = moments[0], moments[-1]
    yield from wrapped(_headline(first, last, rows), width)
    for line in differs:
        yield from wrapped(f"  {line}", width)
    yield ""
    changed = [row for row in rows if row.trend != Trend.FLAT]
    shown = changed[: limit or None]
    head = ("BEFORE", "AFTER", "GROWTH", "AN HOUR", "WHAT")
    cells = [_cells(row) for row in shown]
    yield from table(head, cells, range(4), width, 4)
    left = len(changed) - len(shown)
    if left > 0:
        yield f"  … {number(left)} more (--limit 0: all)"


def _headline(first: Moment, last: Moment, rows: Sequence[Grown]) -> str:
    total = _total(last), _total(first)
    over = f" in {_span(last.time - first.time)}" if first.time is not None and last.time is not None and last.time > first.time else ""
    what = f"{visible(last.program) or 'the program'}: {_signed(total[0] - total[1])}{over}"
    top = rows[0] if rows and rows[0].trend != Trend.FLAT and rows[0].series.delta > 0 else None
    if top is None:
        return f"{what}; nothing has grown"
    return f"{what}; most of it: {label(top.series)}, {_amount(top.series, top.series.delta)}" + (
        f", {_WORDS[top.trend]}" if top.trend in _WORDS else ""
    )


def _total(moment: Moment) -> int:
    return next((figure.bytes or 0 for figure in moment.figures if figure.section == "total"), 0)


def _cells(row: Grown) -> tuple[str, ...]:
    values = row.series.values
    hour = _amount(row.series, int(row.per_hour.slope), True) if row.per_hour is not None and row.trend == Trend.GROWING else "–"
    trend = f" ({_WORDS[row.trend]})" if row.trend in (Trend.PLATEAU, Trend.SAWTOOTH, Trend.FALLING) else ""
    amounts = (_amount(row.series, values[0]), _amount(row.series, values[-1]), _amount(row.series, row.series.delta, True))
    return (*amounts, hour, label(row.series) + trend)


def label(series: Series) -> str:
    """What a figure is of, for a reader."""
    section, within, name = series.key
    counts = [count for count in (series.counts[0], series.counts[-1]) if count is not None]
    change = f", {counts[0]:,} → {counts[1]:,}" if len(counts) == 2 and counts[0] != counts[1] else ""
    if section == "lost":
        return f"lost for sure: {name}{_example(series.note)}{change} blocks" if within == "definite" else f"lost: {name}{change} blocks"
    if section in ("root", "field"):
        return f"held by {name}" + (f" (root {within})" if within and within not in name else "") + f"{change} blocks"
    if section == "container":
        return f"held by {name} (root {within}): {series.note}{change}"
    return name + change


def _example(note: str) -> str:
    return f", e.g. {note}" if note else ""


def _amount(series: Series, value: int, sign: bool = False) -> str:
    plain = size(abs(value)) if any(one is not None for one in series.bytes) else counted(abs(value), "")
    return ("+ " if value > 0 and sign else "− " if value < 0 else "") + plain.strip()


def _signed(value: int) -> str:
    return f"{'+' if value >= 0 else '−'} {size(abs(value))}"


def _span(seconds: float) -> str:
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def differences(moments: Sequence[Moment]) -> Iterator[str]:
    """Why moments cannot be compared in every respect, a line each."""
    first = moments[0]
    for what, get in (("program", lambda m: m.program), ("build-id", lambda m: m.build_id), ("allocators", lambda m: ", ".join(m.allocators))):
        values: list[Optional[str]] = list(dict.fromkeys(get(moment) for moment in moments))
        if len(values) > 1:
            yield f"not the same {what}: " + "; ".join(visible(value or "none") for value in values)
    if any(moment.pid == first.pid and moment.started not in (None, first.started) for moment in moments):
        yield "not the same process: its number was given again"
