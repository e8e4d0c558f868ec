"""Arrays of pointers, in pure Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from findleaks.engine.pointer_runs import Bounds, PointerRun
from findleaks.engine.reference.words import words_of
from findleaks.engine.terms import State
from findleaks.target.base import Piece

if TYPE_CHECKING:
    from findleaks.engine.reference.blocks import PureBlocks


class PurePointerRuns:
    """See PointerRuns."""

    def __init__(self, blocks: PureBlocks, bounds: Bounds) -> None:
        self._blocks, self._bounds = blocks, bounds
        self._start = self._last = self._count = 0

    def read(self, piece: Piece) -> list[PointerRun]:
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
        count, self._count = self._count, 0
        whole = count and count >= self._bounds.least
        return [PointerRun(self._start, self._last + self._blocks.arch.word, count)] if whole else []
