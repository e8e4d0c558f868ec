"""Arrays of pointers in the C kernel (common/kernel/pointer_runs.c)."""

from __future__ import annotations

import ctypes
from ctypes import byref
from typing import TYPE_CHECKING

from findleaks.engine.kernel.library import CRunSearch, CWords, check, take_words
from findleaks.engine.kernel.memory import c_piece
from findleaks.engine.pointer_runs import Bounds, PointerRun
from findleaks.target.base import Piece

if TYPE_CHECKING:
    from findleaks.engine.kernel.blocks import KernelBlocks


class KernelPointerRuns:
    """See PointerRuns."""

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
