"""Rows of blocks made by the C kernel (common/kernel/rows.c)."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterator, Sequence
from ctypes import byref, c_uint32, c_uint64

from findleaks.engine.kernel.library import CRange, CRules
from findleaks.engine.kernel.memory import c_array, c_pieces
from findleaks.engine.rows import RowBatch, RowRules, Selected
from findleaks.target.base import Piece, Range

TEXT_BYTES = 256 << 10
"""Bytes of text made in one call: about a millisecond."""

STEPS = 1 << 16
"""Blocks visited in one call."""

RARE = 1


def _ranges(ranges: Sequence[Range]) -> ctypes.Array[CRange]:
    return (CRange * max(1, len(ranges)))(*(CRange(start, end) for start, end in ranges))


class KernelRows:
    """See rows.Rows. `graph` and `blocks` are the kernel's own; their owners outlive this."""

    def __init__(self, library: ctypes.CDLL, graph: int, blocks: int, rules: RowRules) -> None:
        self._library, self._graph, self._blocks = library, graph, blocks
        self.rules = rules
        self._owners, self._tables = _ranges(rules.owners), _ranges(rules.tables)
        self._mapped = _ranges(rules.mapped)
        self._pieces = c_pieces(())
        self._out = bytearray(TEXT_BYTES)
        self._view = memoryview(self._out)

    def use(self, pieces: Sequence[Piece]) -> None:
        """See rows.Rows."""
        self._pieces = c_pieces(pieces)

    def format(self, order: array[int] | None, at: int, end: int, limit: int) -> RowBatch:
        """See rows.Rows."""
        where, left, written = c_uint32(at), c_uint64(limit), c_uint64()
        places = None if order is None else c_array(order)
        out = (c_array(self._out), TEXT_BYTES, None, byref(written), byref(c_uint64()))
        code = self._library.fl_rows(self._graph, byref(self._rules()), *self._pieces, places, byref(where), end, STEPS, byref(left), *out)
        return RowBatch(str(self._view[: written.value], "ascii"), where.value, code == RARE, limit - left.value)

    def select(self, at: int, end: int) -> Selected:
        """See rows.Rows."""
        where, left, written, size = c_uint32(at), c_uint64((1 << 64) - 1), c_uint64(), c_uint64()
        indices = array("I", bytes(4 * min(STEPS, max(end - at, 1))))
        out = (None, 0, c_array(indices), byref(written), byref(size))
        code = self._library.fl_rows(self._graph, byref(self._rules()), *self._pieces, None, byref(where), end, STEPS, byref(left), *out)
        return Selected(indices[: written.value], size.value, where.value, code == RARE)

    def largest_first(self, indices: array[int]) -> Iterator[array[int]]:
        """See rows.Rows."""
        made, run = array("I", bytes(4 * len(indices))), 1
        while run < len(indices):
            self._library.fl_largest_first(self._blocks, c_array(indices), c_array(made), len(indices), run)
            indices, made, run = made, indices, 2 * run
            yield indices
        yield indices

    def _rules(self) -> CRules:
        """Made for each call: what it points to may not grow while it is there."""
        rules = self.rules
        return CRules(
            rules.states,
            rules.kinds,
            rules.low,
            rules.high,
            self._owners,
            c_array(rules.owner_texts),
            len(rules.owners),
            rules.no_owner,
            self._tables,
            len(rules.tables),
            rules.untyped,
            c_array(rules.words),
            c_array(rules.word_texts),
            self._mapped,
            len(rules.mapped),
            len(rules.words),
            rules.string,
            rules.typed,
            c_array(rules.characters) if rules.characters else None,
            c_array(rules.texts.data),
            c_array(rules.texts.ends),
        )
