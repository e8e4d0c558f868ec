"""What all pictures of heaps share: states with their names, marks and colours, and cells that stand for a number of pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Optional

from findleaks.audit.pages import Area
from findleaks.audit.residency import Residency
from findleaks.engine.pages import PageState
from findleaks.engine.terms import State
from findleaks.formatting import number, size


class Look(NamedTuple):
    """How a state is shown: `mark` and `plain` (in ASCII) are a character of the terminal view, `ansi` its colour there; `light` and
    `dark` are colours on a light and on a dark ground."""

    state: PageState
    key: str
    name: str
    meaning: str
    mark: str
    plain: str
    ansi: str
    light: str
    dark: str


LOOKS = (
    Look(PageState.IN_USE, "in_use", "occupied", "holds blocks in use", "█", "#", "34", "#1f5fbf", "#5ea1ff"),
    Look(
        PageState.UNTOUCHED,
        "untouched",
        "untouched",
        "in use, never written to",
        "□",
        "_",
        "36",
        "#a9d3dd",
        "#2c6573",
    ),
    Look(PageState.CACHED, "cached", "cached", "freed, in thread caches", "c", "c", "33", "#d9a514", "#e3b83a"),
    Look(PageState.METADATA, "metadata", "metadata", "the allocator's own", "m", "m", "35", "#8a4fc0", "#b58be0"),
    Look(PageState.KEPT, "kept", "free, kept", "free, but resident", "o", "o", "31", "#d9482b", "#f0694a"),
    Look(
        PageState.RETURNED,
        "returned",
        "free, returned",
        "free, not resident",
        "·",
        ".",
        "90",
        "#e3e5e8",
        "#2a2f36",
    ),
    Look(PageState.FREE, "free", "free", "kept or returned: not known", "-", "-", "37", "#b9a79f", "#8d7b73"),
    Look(
        PageState.UNKNOWN,
        "unknown",
        "unknown",
        "damaged, absent, foreign",
        "?",
        "?",
        "37",
        "#8b929b",
        "#6a727c",
    ),
)
BY_STATE = {look.state: look for look in LOOKS}
FAINT_LIGHT, FAINT_DARK = "#9dc1f2", "#2b5687"
"""Colours of a page of which next to nothing is in use: in-use pages go from here to their full colour."""


@dataclass(frozen=True)
class Picture:
    """What there is to draw: `title` names the process, `areas` are its heaps, largest resident size first."""

    title: str
    areas: Sequence[Area]
    residency: Residency
    page: int

    @property
    def pages(self) -> int:
        return sum(len(area.states) for area in self.areas)

    def bytes(self, state: PageState) -> int:
        """Of the pages in this state, in all areas."""
        return sum(area.bytes(state) for area in self.areas)

    @property
    def mapped(self) -> int:
        return sum(area.size for area in self.areas)

    @property
    def used(self) -> int:
        """Bytes in use, headers included, in memory or not."""
        return sum(area.held(State.IN_USE) for area in self.areas)

    @property
    def resident(self) -> Optional[int]:
        """Bytes of all areas in memory; None where that is not known of all."""
        known = [area.resident for area in self.areas]
        return None if None in known else sum(size for size in known if size is not None)

    @property
    def headline(self) -> str:
        """ "191 MiB resident in 17 heaps (271 MiB mapped), 4.3 MiB in use; residency from pagemap" """
        count = len(self.areas)
        heaps = f"{number(count)} heap" + ("" if count == 1 else "s")
        first = f"{size(self.mapped)} mapped in {heaps}"
        if self.resident is not None:
            first = f"{size(self.resident)} resident in {heaps} ({size(self.mapped)} mapped)"
        return f"{first}, {size(self.used)} in use; {self.how}"

    @property
    def how(self) -> str:
        """How it is known which pages are in memory."""
        source = self.residency.source
        if not self.residency:
            return "which pages are resident is not known"
        saved = f" of {self.residency.saved}" if self.residency.saved else ""
        return f"residency from the {source}{saved}" if source != "pagemap" else "residency from pagemap"


def sums(area: Area) -> str:
    """ "22 MiB mapped, 21 MiB resident, 64 KiB in use": to the byte, as every picture says it; in use are blocks with their headers."""
    resident = f", {size(area.resident)} resident" if area.resident is not None else ""
    return f"{size(area.size)} mapped{resident}, {size(area.held(State.IN_USE))} in use"


def page_sums(area: Area) -> str:
    """ "548 KiB occupied, 21 MiB kept": whole pages by their state."""
    return ", ".join(f"{size(area.bytes(look.state))} {look.name.replace('free, ', '')}" for look in LOOKS if area.bytes(look.state))


class Cell(NamedTuple):
    """Pages of an area from number `first` on: the state that most of them are in, and 0 … 255, how much of its pages in use is in use."""

    first: int
    pages: int
    state: PageState
    share: int


def cells(area: Area, per: int) -> Iterator[Cell]:
    """The area in cells of `per` pages each; the last may have fewer."""
    states, shares = area.states, area.shares
    for at in range(0, len(states), per):
        piece = states[at : at + per]
        state = max(_ORDER, key=piece.count) if per > 1 else piece[0]
        share = 0
        if state in _USED:
            mine = [share for one, share in zip(piece, shares[at : at + per]) if one == state]
            share = sum(mine) // len(mine)
        yield Cell(at, len(piece), PageState(state), share)


_ORDER = tuple(int(look.state) for look in LOOKS)  # of states that are equally frequent the first is shown
_USED = (PageState.IN_USE, PageState.UNTOUCHED)


def pages_per_cell(pages: int, room: int) -> int:
    """The least power of two by which so many pages fit into `room` cells."""
    per = 1
    while per * room < pages:
        per *= 2
    return per


def blend(faint: str, full: str, share: int) -> str:
    """The colour of a page `share` 255ths of which are in use; colours are "#rrggbb"."""
    part = min(max(share, 0), 255) / 255
    ends = ((int(faint[at : at + 2], 16), int(full[at : at + 2], 16)) for at in (1, 3, 5))
    ends = ((int(faint[at : at + 2], 16), int(full[at : at + 2], 16)) for at in (1, 3, 5))
    mixed = (round(low + (high - low) * part) for low, high in ends)
    return "#" + "".join(f"{value:02x}" for value in mixed)
