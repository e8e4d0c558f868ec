"""Text of `diff` about surviving blocks: blocks that exist in every later sample of one process."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Optional, Union

from findleaks.engine.sampling import LARGE
from findleaks.formatting import format_count, number, size, table, wrap
from findleaks.history.figure_series import Series
from findleaks.history.survivors import Amount, Cohort, Estimate, Survival, Survivors

MIN_SEEN = 16
"""Minimum number of blocks of one size for which `diff` prints a sentence."""
_SIZES = (re.compile(r"(?:.* \()?(\d+) B\b[^)]*\)?"), re.compile(r".*, ([\d,]+) B each, .*"))
"""Match the size in the name of a leaked group, and in the note of a container
(history/figures.py)."""


def clause(found: Union[Survival, str], series: Sequence[Series]) -> str:
    """Return a sentence about the blocks of the first series whose name or note states a block
    size; "" if there is none."""
    if isinstance(found, str):
        return ""
    for one in series:
        number = _size(one)
        survivors = found.of(number) if number is not None else None
        if survivors is not None:
            return _clause(survivors)
    return ""


def _size(one: Series) -> Optional[int]:
    matched = {"lost": _SIZES[0].fullmatch(one.key[2]), "container": _SIZES[1].fullmatch(one.note)}.get(one.key[0])
    return int(matched[1].replace(",", "")) if matched else None


def _clause(one: Survivors) -> str:
    came, when = one.first, "of the first sample"
    if one.since is not None and one.since.made.blocks.value >= MIN_SEEN:
        came, when = one.since, "made since the first sample"
    if came.part is None or came.made.blocks.value < MIN_SEEN:
        return ""
    return f"Of the {one.size:,}-byte blocks {when}, {percent(came.part)} are still in use."


def percent(part: Estimate) -> str:
    """Return a percentage: "99 %", "96 to 99 %" for an estimate, "all", "none"."""
    low, high = (_round_percent(value) for value in (part.low, part.high))
    if low == high:
        return {"100": "all", "0": "none"}.get(low, f"{low} %")
    return f"{low} to {high} %"


def _round_percent(part: float) -> str:
    """Return a rounded percentage. It is 0 or 100 only if exactly none or all remain."""
    if part in (0.0, 1.0):
        return f"{part:.0%}"[:-1]
    return f"{min(max(100 * part, 0.1), 99.9):.3g}" if part < 0.01 or part > 0.99 else f"{100 * part:.0f}"


def lines(found: Union[Survival, str], limit: int, width: int) -> Iterator[str]:
    """Yield the lines of the table of --by survivors."""
    yield ""
    if isinstance(found, str):
        yield from wrap(f"  Survivors are not known: {found}.", width)
        return
    shown = found.sizes[: limit or None]
    head = ("SIZE", "FIRST", "STILL THERE", "MADE SINCE", "STILL THERE", "NEWEST")
    yield from table(head, map(_cells, (*shown, found.total)), range(6), width, 5)
    if len(found.sizes) > len(shown):
        yield f"  … {format_count(len(found.sizes) - len(shown), 'more size')} (--limit 0)"
    if found.level:
        yield from wrap(
            f"  Estimates from one in {1 << found.level:,} of the blocks below {size(LARGE)}; percentages are 95 % intervals.",
            width,
        )


def _cells(one: Survivors) -> tuple[str, ...]:
    since = one.since
    made = _blocks(since.made) if since else "–"
    name = f"{one.size:,} B" if one.size is not None else "all sizes"
    return (name, _blocks(one.first.made), _format_stayed(one.first), made, _format_stayed(since), _blocks(one.newest))


def _blocks(one: Amount) -> str:
    exact = one.blocks.low == one.blocks.high
    return number(round(one.blocks.value)) if exact else f"~{float(f'{one.blocks.value:.3g}'):,.0f}"


def _format_stayed(one: Optional[Cohort]) -> str:
    return percent(one.part) if one is not None and one.part is not None else "–"
