"""The layout of heap maps of fixed size, which SVG and PNG share."""

from __future__ import annotations

from itertools import groupby, islice
from typing import NamedTuple

from findleaks.audit.pages import Area
from findleaks.formatting import number, printable, size
from findleaks.report.heapmap.cells import LOOKS, Cell, Picture, format_sums, make_cells, pages_per_cell

WIDTH = 1200
MARGIN, GUTTER, LINE = 24, 132, 18
# Pixels of a cell. The largest size with one cell per page is used; if none fits, the smallest size
CELLS = (16, 12, 8, 5)
# Maximum number of pixels of all rows of cells together, except the last row of each heap
TALL = 800
MOST = 64  # maximum number of heaps that are drawn, largest first; the rest is summed up


class Words(NamedTuple):
    """A text whose baseline begins at (x, y). `look`: index in LOOKS of the colour box before the
    text, or -1 for none."""

    x: int
    y: int
    text: str
    size: int = 13
    faint: bool = False
    mono: bool = False
    look: int = -1


class Strip(NamedTuple):
    """`length` adjacent equal cells."""

    x: int
    y: int
    length: int
    cell: Cell


class HeapMapLayout(NamedTuple):
    """All elements to draw. The picture has WIDTH by `height` pixels."""

    height: int
    cell: int
    words: list[Words]
    strips: list[Strip]


def place_picture(picture: Picture) -> HeapMapLayout:
    drawn = list(picture.areas[:MOST])
    words = [Words(MARGIN, 36, printable(picture.title, 110), 18)]
    words.append(Words(MARGIN, 58, printable(picture.headline, 160), faint=True))
    y = 84
    x = MARGIN
    for at, look in enumerate(LOOKS):
        held = picture.bytes(look.state)
        if held:
            text = f"{look.name}  {size(held)}"
            if x + 30 + 7.4 * len(text) > WIDTH - MARGIN:
                x, y = MARGIN, y + LINE + 4
            words.append(Words(x + 18, y, text, look=at))
            x += 44 + int(7.4 * len(text))
    pages = sum(len(area.states) for area in drawn)
    side = next((side for side in CELLS if pages <= _columns(side) * (TALL // side)), CELLS[-1])
    per = pages_per_cell(pages, _columns(side) * (TALL // side))
    after = MARGIN + 24 + max((int(7.6 * len(area.name)) for area in drawn), default=0)
    strips: list[Strip] = []
    y += 16
    for area in drawn:
        y += 26
        words.append(Words(MARGIN, y, area.name, 14))
        words.append(Words(after, y, format_sums(area), faint=True))
        y = _rows(area, per, side, y + 8, words, strips)
    y += 26
    rest = picture.areas[MOST:]
    if rest:
        words.append(Words(MARGIN, y, f"and {number(len(rest))} smaller heaps, {size(sum(area.size for area in rest))}", faint=True))
        y += LINE
    cell = f"a cell is {'a page' if per == 1 else f'{number(per)} pages'} ({size(per * picture.page)})"
    words.append(Words(MARGIN, y, f"{cell}; stronger colour: larger share of the page in use; {picture.how}", faint=True))
    return HeapMapLayout(y + 20, side, words, strips)


def _columns(side: int) -> int:
    return (WIDTH - 2 * MARGIN - GUTTER) // side


def _rows(area: Area, per: int, side: int, y: int, words: list[Words], strips: list[Strip]) -> int:
    """Place the cells of an area from `y` on. Returns the y coordinate at which they end."""
    left, end = make_cells(area, per), y + side
    for row in iter(lambda: list(islice(left, _columns(side))), []):
        if row[0].first == 0 or not strips or y - words[-1].y >= 3 * LINE or not words[-1].mono:
            words.append(Words(MARGIN, y + 9, f"{area.address(row[0].first):#x}", 11, True, True))
        x = MARGIN + GUTTER
        for shown, same in groupby(map(_coarse, row)):
            strips.append(Strip(x, y, len(list(same)), shown))
            x += strips[-1].length * side
        y = end = y + side
    return end


def _coarse(cell: Cell) -> Cell:
    """Return the cell as it is drawn: without its position, and with its fraction in use in steps
    of 32."""
    return cell._replace(first=0, pages=0, share=cell.share // 32 * 32 + 31 if cell.share else 0)
