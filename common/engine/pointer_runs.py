"""Arrays of pointers among other data.

A *run* is a range of words that are 0 or point between the lowest and the highest block. It starts
and ends with a pointer to a block in use; only these count. Stale pointers (to freed blocks)
neither count nor end it; other values do, and more than `gap` bytes without a counted pointer."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from findleaks.target.base import Piece


class PointerRun(NamedTuple):
    """`pointers` to blocks in use in [start, end), among zeros and stale pointers."""

    start: int
    end: int
    pointers: int


class Bounds(NamedTuple):
    """All blocks lie in [low, high). `least`: pointers of a run to be reported; `gap`: bytes."""

    low: int
    high: int
    least: int
    gap: int


class PointerRuns(Protocol):
    """Made by `Blocks.pointer_runs`."""

    def read(self, piece: Piece) -> list[PointerRun]:
        """Runs that end in this piece. Pieces ascend; memory between them counts as zeros."""
        ...

    def finish(self) -> list[PointerRun]:
        """The unfinished run, if long enough; the next piece starts anew."""
        ...
