"""Find arrays of pointers among other data.

A *run* is a range of words that are 0 or point between the lowest and the highest block. It starts
and ends with a pointer to a block in use. Only pointers to blocks in use are counted. Stale
pointers (to freed blocks) are not counted, but do not end the run. A run ends at any other value,
and at a distance of more than `gap` bytes without a counted pointer."""

from __future__ import annotations

from typing import Protocol

from findleaks.target.base import Piece
from findleaks.value_classes import NamedTuple


class PointerRun(NamedTuple):
    """A range [start, end) with `pointers` pointers to blocks in use, among zeros and stale
    pointers."""

    start: int
    end: int
    pointers: int


class Bounds(NamedTuple):
    """Limits of a search. All blocks are in [low, high). `least` is the minimum number of pointers
    in a reported run. For `gap`, in bytes, see above."""

    low: int
    high: int
    least: int
    gap: int


class PointerRuns(Protocol):
    """A search for runs, made by `Blocks.pointer_runs`."""

    def read(self, piece: Piece) -> list[PointerRun]:
        """Return runs that end in this piece. Pieces ascend; memory between them counts as
        zeros."""
        ...

    def finish(self) -> list[PointerRun]:
        """Return the unfinished run if it is long enough. The next piece starts a new search."""
        ...
