"""Arrays of pointers in the C engine (common/native/pointer_runs.c)."""

from __future__ import annotations

from ctypes import byref
from typing import TYPE_CHECKING

from findleaks.engine.native.declarations import CRunSearch
from findleaks.engine.native.library import CLibrary
from findleaks.engine.native.memory import c_piece
from findleaks.engine.pointer_runs import Bounds, PointerRun
from findleaks.target.base import Piece

if TYPE_CHECKING:
    from findleaks.engine.native.blocks import NativeBlocks


class NativePointerRuns:
    """See PointerRuns."""

    def __init__(self, library: CLibrary, blocks: NativeBlocks, bounds: Bounds) -> None:
        self._library, self._blocks = library, blocks
        self._search = CRunSearch(bounds.low, max(bounds.low, bounds.high), bounds.least, bounds.gap, 0, 0, 0)

    def read(self, piece: Piece) -> list[PointerRun]:
        """See PointerRuns."""
        found = self._library.rows(3, self._library.fl_pointer_runs, self._blocks.handle, c_piece(piece), byref(self._search))
        return [PointerRun(*row) for row in found]

    def finish(self) -> list[PointerRun]:
        """See PointerRuns."""
        search = self._search
        count, search.count = search.count, 0
        whole = count and count >= search.least
        return [PointerRun(search.start, search.last + self._blocks.arch.word, count)] if whole else []
