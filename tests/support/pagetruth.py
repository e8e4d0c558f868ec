"""Compute the expected states of pages from what programs/pages.c prints about its heap."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import building

from findleaks.engine.pages import PageState

PAGE = 4096


def build(folder: Path) -> Path:
    """Compile the program."""
    return building.compile_program(folder, "pages.c", "-O1")


@dataclass
class Truth:
    """`used` and `cached`: (start, end), headers included; `present`: for each page by address, whether it is resident; `trim`: in
    bytes."""

    used: list[tuple[int, int]] = field(default_factory=list)
    cached: list[tuple[int, int]] = field(default_factory=list)
    present: dict[int, bool] = field(default_factory=dict)
    heaps: list[tuple[int, int]] = field(default_factory=list)
    trim: int = 0

    def states(self, known: bool = True) -> dict[int, PageState]:
        """Return the expected state of each page. `known`: whether residency is known."""
        used, cached = _touching(self.used), _touching(self.cached)
        first = {start for start, _ in self.heaps}  # the thread cache; in a thread's heap, also the arena itself
        found = {}
        for page, present in self.present.items():
            absent = known and not present
            if page in used:
                found[page] = PageState.UNTOUCHED if absent else PageState.IN_USE
            elif absent:
                found[page] = PageState.RETURNED
            elif page in cached:
                found[page] = PageState.CACHED
            elif page in first:
                found[page] = PageState.METADATA
            else:
                found[page] = PageState.KEPT if known else PageState.FREE
        return found


def truth(output: str) -> Truth:
    """Parse the output of the program."""
    made = Truth()
    for line in output.splitlines():
        word, *rest = line.split()
        if word in ("block", "cached"):
            start = int(rest[0], 16)
            # The last usable word is the first of the next chunk's two header words. The range also includes the second one.
            (made.used if word == "block" else made.cached).append((start, start + int(rest[1]) + 8))
        elif word == "pages":
            start = int(rest[0], 16)
            made.present.update((start + at * PAGE, bit == "1") for at, bit in enumerate(rest[1]))
            made.heaps.append((start, start + len(rest[1]) * PAGE))
        elif word == "trim":
            made.trim = int(rest[0])
    return made


def _touching(ranges: list[tuple[int, int]]) -> set[int]:
    return {page for start, end in ranges for page in range(start // PAGE * PAGE, end, PAGE)}
