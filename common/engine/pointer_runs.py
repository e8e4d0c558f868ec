"""Arrays of pointers among other data.

A *run* is a range of words that are 0 or point between the lowest and the highest block. Only
pointers to blocks in use are counted, and a run starts and ends with one: stale pointers, to freed
blocks, neither count nor end it. A word of any other value ends a run, as do more than `gap` bytes
without a pointer that counts."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from findleaks.target.base import Piece


class PointerRun(NamedTuple):
    """`pointers` to blocks in use between `start` and `end` (addresses), with zeros and stale
    pointers among them."""

    start: int
    end: int
    pointers: int


class Bounds(NamedTuple):
    """All blocks lie in [low, high). `least`: pointers of a run to be reported; `gap`: bytes, see
    above."""

    low: int
    high: int
    least: int
    gap: int


class PointerRuns(Protocol):
    """Made by `Blocks.pointer_runs`."""

    def read(self, piece: Piece) -> list[PointerRun]:
        """The runs that end in this piece, ascending. Pieces ascend; memory between two of them
        counts as zeros."""
        ...

    def finish(self) -> list[PointerRun]:
        """The unfinished run, if it is long enough; the next piece starts anew."""
        ...
