"""The common parts of heap maps: names, marks and colours of page states, and cells that represent
several pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from findleaks.audit.pages import Area, PageMap
from findleaks.engine.pages import PageState
from findleaks.engine.terms import State
from findleaks.formatting import format_count, size


class Look(NamedTuple):
    """The appearance of a page state."""

    state: PageState
    key: str
    name: str
    meaning: str
    mark: str  # character in the terminal
    plain: str  # ASCII character in the terminal
    ansi: str  # colour in the terminal
    light: str  # colour on a light background
    dark: str  # colour on a dark background


LOOKS = (
    Look(PageState.IN_USE, "in_use", "occupied", "holds blocks in use", "█", "#", "34", "#1f5fbf", "#5ea1ff"),
    Look(PageState.UNTOUCHED, "untouched", "untouched", "in use, never written to", "□", "_", "36", "#a9d3dd", "#2c6573"),
    Look(PageState.CACHED, "cached", "cached", "free, in thread caches", "c", "c", "33", "#d9a514", "#e3b83a"),
    Look(PageState.METADATA, "metadata", "metadata", "allocator metadata", "m", "m", "35", "#8a4fc0", "#b58be0"),
    Look(PageState.KEPT, "kept", "free, kept", "free, but resident", "o", "o", "31", "#d9482b", "#f0694a"),
    Look(PageState.RETURNED, "returned", "free, returned", "free, not resident", "·", ".", "90", "#e3e5e8", "#2a2f36"),
    Look(PageState.FREE, "free", "free", "may have been returned", "-", "-", "37", "#b9a79f", "#8d7b73"),
    Look(PageState.UNKNOWN, "unknown", "unknown", "damaged, absent, foreign", "?", "?", "37", "#8b929b", "#6a727c"),
)
BY_STATE = {look.state: look for look in LOOKS}
# Colours of pages of which hardly any bytes are in use. The more bytes are in use, the more the
# colour resembles the full colour.
FAINT_LIGHT, FAINT_DARK = "#9dc1f2", "#2b5687"


class Picture(PageMap):
    """The heaps to draw, with a headline."""

    @property
    def headline(self) -> str:
        """Return the first line: "191 MiB resident in 17 heaps (271 MiB mapped), 4.3 MiB in use;
        residency from …"."""
        heaps = format_count(len(self.areas), "heap")
        first = f"{size(self.mapped)} mapped in {heaps}"
        if self.resident is not None:
            first = f"{size(self.resident)} resident in {heaps} ({size(self.mapped)} mapped)"
        return f"{first}, {size(self.used)} in use; {self.how}"

    @property
    def how(self) -> str:
        """Return a phrase about the source of the residency."""
        source = self.residency.source
        if not self.residency:
            return "resident pages are unknown"
        saved = f" of {self.residency.saved}" if self.residency.saved else ""
        return f"residency from the {source}{saved}" if source != "pagemap" else "residency from pagemap"


def format_sums(area: Area) -> str:
    """Return an area's bytes as text: "22 MiB mapped, 21 MiB resident, 64 KiB in use". The bytes in
    use include the headers of blocks."""
    resident = f", {size(area.resident)} resident" if area.resident is not None else ""
    return f"{size(area.size)} mapped{resident}, {size(area.sum_state(State.IN_USE))} in use"


def format_page_sums(area: Area) -> str:
    """Return the bytes of an area's whole pages by state: "548 KiB occupied, 21 MiB kept"."""
    return ", ".join(f"{size(area.bytes(look.state))} {look.name.replace('free, ', '')}" for look in LOOKS if area.bytes(look.state))


class Cell(NamedTuple):
    """The pages from number `first` on: the state that most of them have, and the average fraction
    in use (0 … 255)."""

    first: int
    pages: int
    state: PageState
    share: int


def make_cells(area: Area, per: int) -> Iterator[Cell]:
    """Yield the area in cells of `per` pages each; the last may have fewer."""
    states, shares = area.states, area.shares
    for at in range(0, len(states), per):
        piece = states[at : at + per]
        state = max(_ORDER, key=piece.count) if per > 1 else piece[0]
        share = 0
        if state in _USED:
            mine = [share for one, share in zip(piece, shares[at : at + per]) if one == state]
            share = sum(mine) // len(mine)
        yield Cell(at, len(piece), PageState(state), share)


# If several states are equally frequent, the first in this order is shown
_ORDER = tuple(int(look.state) for look in LOOKS)
_USED = (PageState.IN_USE, PageState.UNTOUCHED)


def pages_per_cell(pages: int, limit: int) -> int:
    """Return the smallest power of two that, as the number of pages per cell, fits `pages` into
    `limit` cells."""
    per = 1
    while per * limit < pages:
        per *= 2
    return per


def blend(faint: str, full: str, share: int) -> str:
    """Mix the colour of a page of which the fraction `share` / 255 is in use. Colours are
    "#rrggbb"."""
    part = min(max(share, 0), 255) / 255
    ends = ((int(faint[at : at + 2], 16), int(full[at : at + 2], 16)) for at in (1, 3, 5))
    mixed = (round(low + (high - low) * part) for low, high in ends)
    return "#" + "".join(f"{value:02x}" for value in mixed)
