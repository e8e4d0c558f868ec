"""Common parts of heap maps: names, marks and colours of page states, and cells of several
pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from findleaks.audit.pages import Area, PageMap
from findleaks.engine.pages import PageState
from findleaks.engine.terms import State
from findleaks.formatting import counted, size


class Look(NamedTuple):
    """Appearance of a state."""

    state: PageState
    key: str
    name: str
    meaning: str
    mark: str  # character in the terminal
    plain: str  # the same in ASCII
    ansi: str  # colour in the terminal
    light: str  # colour on a light background
    dark: str  # on a dark one


LOOKS = (
    Look(PageState.IN_USE, "in_use", "occupied", "holds blocks in use", "█", "#", "34", "#1f5fbf", "#5ea1ff"),
    Look(PageState.UNTOUCHED, "untouched", "untouched", "in use, never written to", "□", "_", "36", "#a9d3dd", "#2c6573"),
    Look(PageState.CACHED, "cached", "cached", "free, in thread caches", "c", "c", "33", "#d9a514", "#e3b83a"),
    Look(PageState.METADATA, "metadata", "metadata", "allocator metadata", "m", "m", "35", "#8a4fc0", "#b58be0"),
    Look(PageState.KEPT, "kept", "free, kept", "free, but resident", "o", "o", "31", "#d9482b", "#f0694a"),
    Look(PageState.RETURNED, "returned", "free, returned", "free, not resident", "·", ".", "90", "#e3e5e8", "#2a2f36"),
    Look(PageState.FREE, "free", "free", "kept or returned: not known", "-", "-", "37", "#b9a79f", "#8d7b73"),
    Look(PageState.UNKNOWN, "unknown", "unknown", "damaged, absent, foreign", "?", "?", "37", "#8b929b", "#6a727c"),
)
BY_STATE = {look.state: look for look in LOOKS}
# Colours of pages that are hardly in use; others range up to full colour
FAINT_LIGHT, FAINT_DARK = "#9dc1f2", "#2b5687"


class Picture(PageMap):
    """What to draw, with its headline."""

    @property
    def headline(self) -> str:
        """The first line: "191 MiB resident in 17 heaps (271 MiB mapped), 4.3 MiB in use; residency
        from …"."""
        heaps = counted(len(self.areas), "heap")
        first = f"{size(self.mapped)} mapped in {heaps}"
        if self.resident is not None:
            first = f"{size(self.resident)} resident in {heaps} ({size(self.mapped)} mapped)"
        return f"{first}, {size(self.used)} in use; {self.how}"

    @property
    def how(self) -> str:
        """Source of the residency."""
        source = self.residency.source
        if not self.residency:
            return "resident pages are unknown"
        saved = f" of {self.residency.saved}" if self.residency.saved else ""
        return f"residency from the {source}{saved}" if source != "pagemap" else "residency from pagemap"


def format_sums(area: Area) -> str:
    """Format an area's bytes: "22 MiB mapped, 21 MiB resident, 64 KiB in use", blocks with
    headers."""
    resident = f", {size(area.resident)} resident" if area.resident is not None else ""
    return f"{size(area.size)} mapped{resident}, {size(area.held(State.IN_USE))} in use"


def format_page_sums(area: Area) -> str:
    """Format an area's whole pages by state: "548 KiB occupied, 21 MiB kept"."""
    return ", ".join(f"{size(area.bytes(look.state))} {look.name.replace('free, ', '')}" for look in LOOKS if area.bytes(look.state))


class Cell(NamedTuple):
    """Pages from number `first` on: state of most pages, and average share in use (0 … 255)."""

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


# Of equally frequent states the first in this order is shown
_ORDER = tuple(int(look.state) for look in LOOKS)
_USED = (PageState.IN_USE, PageState.UNTOUCHED)


def pages_per_cell(pages: int, limit: int) -> int:
    """Return the least power of two of pages per cell that fits `pages` into `limit` cells."""
    per = 1
    while per * limit < pages:
        per *= 2
    return per


def blend(faint: str, full: str, share: int) -> str:
    """Mix the colour of a page with `share` / 255 in use; colours are "#rrggbb"."""
    part = min(max(share, 0), 255) / 255
    ends = ((int(faint[at : at + 2], 16), int(full[at : at + 2], 16)) for at in (1, 3, 5))
    mixed = (round(low + (high - low) * part) for low, high in ends)
    return "#" + "".join(f"{value:02x}" for value in mixed)
