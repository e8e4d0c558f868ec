"""Render a heap map in the terminal: rows of cells, a legend, and totals."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, islice
from operator import itemgetter
from typing import NamedTuple

from findleaks.audit.pages import Area
from findleaks.engine.pages import PageState
from findleaks.engine.terms import State
from findleaks.escaping import Markup
from findleaks.formatting import format_count, number, size, table, wrap
from findleaks.report.heapmap.cells import BY_STATE, LOOKS, Cell, Picture, format_page_sums, format_sums, make_cells, pages_per_cell

ROWS = 24  # default number of rows of cells, for all heaps together
# Marks of a page of which at least 3/4, at least 1/4, or less is in use
_MARKS, _PLAIN = ("█", "▓", "▒"), ("#", "+", ":")


class Style(NamedTuple):
    """How to draw. `colour`: whether the terminal shows colours. `plain`: whether only ASCII is
    used."""

    colour: bool = False
    plain: bool = False


def render_lines(picture: Picture, width: int, style: Style, limit: int, rows: int = ROWS) -> Iterator[str]:
    """Render the heaps, the largest first. `limit`: number of heaps that are drawn (0: all)."""
    yield from wrap(picture.headline, width)
    drawn = list(picture.areas[:limit] if limit else picture.areas)
    columns = max(16, min(width - 20, 128))
    shown = [area for area in drawn if len(area.states)]
    per = pages_per_cell(sum(len(area.states) for area in shown), columns * max(rows - len(shown) // 2, 1)) if shown else 1
    for area in shown:
        yield ""
        yield from wrap(f"  {area.name}: {format_sums(area)}; pages: {format_page_sums(area)}", width)
        yield from _rows(area, per, columns, style)
    rest = picture.areas[len(drawn) :]
    if rest:
        held = sum(area.resident or 0 for area in rest)
        resident = f", {size(held)} resident" if all(area.resident is not None for area in rest) else ""
        yield ""
        yield f"  and {format_count(len(rest), 'smaller heap')}: {size(sum(area.size for area in rest))}{resident}"
    if shown:
        yield ""
        what = "a page" if per == 1 else f"{number(per)} pages ({size(per * picture.page)}), as most of them are"
        marks = _PLAIN if style.plain else _MARKS
        used = f"occupied: {marks[0]} 3/4 or more of it in use, {marks[1]} 1/4 or more, {marks[2]} less"
        meaning = "IN USE counts the bytes of blocks with their headers; the state is that of the whole page"
        yield from wrap(f"  each character is {what}; {used}. {meaning}", width)
        yield ""
        yield from _totals(picture, width, style)


def _rows(area: Area, per: int, columns: int, style: Style) -> Iterator[str]:
    """Yield rows of cells, each with the address of its first page. Repeated rows appear once, with
    their number."""
    left = make_cells(area, per)
    rows = iter(lambda: list(islice(left, columns)), [])
    for text, same in groupby(((row[0].first, _row(row, style)) for row in rows), key=itemgetter(1)):
        firsts = [first for first, _ in same]
        yield Markup(f"  {area.address(firsts[0]):#014x}  {text}")
        if len(firsts) > 1:
            yield f"  {'':14}  (and {format_count(len(firsts) - 1, 'row')} like this)"


def _row(row: list[Cell], style: Style) -> str:
    text, colour = "", ""
    for cell in row:
        look = BY_STATE[cell.state]
        mark = look.plain if style.plain else look.mark
        if cell.state == PageState.IN_USE:
            marks = _PLAIN if style.plain else _MARKS
            mark = marks[0] if cell.share >= 192 else marks[1] if cell.share >= 64 else marks[2]
        if style.colour and look.ansi != colour:
            text += f"\x1b[{look.ansi}m"
            colour = look.ansi
        text += mark
    return text + ("\x1b[0m" if colour else "")


def _totals(picture: Picture, width: int, style: Style) -> Iterator[str]:
    rows = []
    for look in LOOKS:
        held = picture.bytes(look.state)
        if not held:
            continue
        used = sum(area.sum_state(State.IN_USE, look.state) for area in picture.areas)
        pages = sum(area.states.count(look.state) for area in picture.areas)
        mark = look.plain if style.plain else look.mark
        part = held * 100 / max(picture.mapped, 1)
        share = f"{part:.0f} %" if part >= 0.5 else "<1 %"
        in_use = size(used) if used else "–" if not style.plain else "-"
        rows.append([mark, look.name, number(pages), size(held), share, in_use, look.meaning])
    yield from table(["", "STATE", "PAGES", "BYTES", "SHARE", "IN USE", "WHAT"], rows, (2, 3, 4, 5), width, 6)
