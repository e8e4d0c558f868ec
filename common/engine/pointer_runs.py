"""Finding arrays of pointers in memory that holds other things, too.

A *run* is a stretch of words each of which is 0 or points between the lowest block and the highest. Only pointers into blocks in use are
counted, and a run begins and ends with one: stale pointers, to blocks that were freed, neither count nor end it. A word of any other
value ends a run, and so do more than `gap` bytes without a pointer that counts.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from findleaks.target.base import Piece


class PointerRun(NamedTuple):
    """From `start` to `end` (addresses) there are `pointers` to blocks in use, and nothing else but zeros and stale pointers."""

    start: int
    end: int
    pointers: int


class Bounds(NamedTuple):
    """All blocks lie in [low, high). `least`: pointers of a run that is to be found; `gap`: bytes, see above."""

    low: int
    high: int
    least: int
    gap: int


class PointerRuns(Protocol):
    """Made by `Blocks.pointer_runs`."""

    def read(self, piece: Piece) -> list[PointerRun]:
        """The runs that end in this piece, ascending. Pieces ascend; what lies between two of them counts as zeros."""
        ...

    def finish(self) -> list[PointerRun]:
        """The run that was going on, if it is long enough. What is read next has nothing to do with it."""
        ...
