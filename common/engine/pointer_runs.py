"""Finding arrays of pointers in memory that holds other things, too.

A *run* is a stretch of words each of which is 0 or points between the lowest block and the highest. Only pointers into blocks in use are
counted, and a run begins and ends with one: stale pointers, to blocks that were freed, neither count nor end it. A word of any other
value ends a run, and so do more than `gap` bytes without a pointer that counts.
"""

from __future__ import annotations

import ctypes
from ctypes import byref
from typing import TYPE_CHECKING, NamedTuple, Protocol

from findleaks.engine.kernel.library import CRunSearch, CWords, check, take_words
from findleaks.engine.kernel.memory import c_piece
from findleaks.engine.terms import State
from findleaks.target.base import Piece

if TYPE_CHECKING:
    from findleaks.engine.kernel.blocks import KernelBlocks
    from findleaks.engine.python.blocks import PureBlocks


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


class PurePointerRuns:
    """See PointerRuns: the reference that tests hold the kernel to."""

    def __init__(self, blocks: PureBlocks, bounds: Bounds) -> None:
        self._blocks, self._bounds = blocks, bounds
        self._start = self._last = self._count = 0

    def read(self, piece: Piece) -> list[PointerRun]:
        """See PointerRuns."""
        from findleaks.engine.python.blocks import words_of  # it imports this file

        low, high, _, gap = self._bounds
        found: list[PointerRun] = []
        word = self._blocks.arch.word
        base, words = words_of(piece, self._blocks.arch)
        for address, value in zip(range(base, base + word * len(words), word), words):
            if not value:
                continue
            if not low <= value < high:
                found += self.finish()
                continue
            block = self._blocks.lookup(value)
            if block is None or block[3] != State.IN_USE:
                continue
            if self._count and address - self._last - word > gap:
                found += self.finish()
            if not self._count:
                self._start = address
            self._last = address
            self._count += 1
        return found

    def finish(self) -> list[PointerRun]:
        """See PointerRuns."""
        count, self._count = self._count, 0
        whole = count and count >= self._bounds.least
        return [PointerRun(self._start, self._last + self._blocks.arch.word, count)] if whole else []


class KernelPointerRuns:
    """See PointerRuns; in the C kernel (common/kernel/pointer_runs.c)."""

    def __init__(self, library: ctypes.CDLL, blocks: KernelBlocks, bounds: Bounds) -> None:
        self._library, self._blocks = library, blocks
        self._search = CRunSearch(bounds.low, max(bounds.low, bounds.high), bounds.least, bounds.gap, 0, 0, 0)

    def read(self, piece: Piece) -> list[PointerRun]:
        """See PointerRuns."""
        words = CWords()
        code = self._library.fl_pointer_runs(self._blocks.handle, c_piece(piece), byref(self._search), byref(words))
        found = take_words(self._library, words)
        check(code, "words")
        return [PointerRun(*found[at : at + 3]) for at in range(0, len(found), 3)]

    def finish(self) -> list[PointerRun]:
        """See PointerRuns."""
        search = self._search
        count, search.count = search.count, 0
        whole = count and count >= search.least
        return [PointerRun(search.start, search.last + self._blocks.arch.word, count)] if whole else []
