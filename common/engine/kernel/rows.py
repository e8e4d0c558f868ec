"""Rows of blocks made by the C kernel (common/kernel/rows.c)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from ctypes import byref, c_uint32, c_uint64

from findleaks.engine.kernel.library import CRules, Handle, Kernel
from findleaks.engine.kernel.memory import c_array, c_pieces, c_ranges, zeros
from findleaks.engine.rows import RowBatch, RowRules, Selected
from findleaks.target.base import Piece

TEXT_BYTES = 256 << 10  # bytes of text made in one call: about a millisecond
STEPS = 1 << 16  # blocks visited in one call
RARE = 1


class KernelRows:
    """See rows.Rows."""

    def __init__(self, library: Kernel, graph: Handle, blocks: Handle, rules: RowRules) -> None:
        self._library, self._graph, self._blocks = library, graph, blocks
        self.rules = rules
        self._owners, self._tables, self._mapped = (c_ranges(ranges)[0] for ranges in (rules.owners, rules.tables, rules.mapped))
        self._pieces = c_pieces(())
        self._out = bytearray(TEXT_BYTES)
        self._view = memoryview(self._out)

    def use(self, pieces: Sequence[Piece]) -> None:
        self._pieces = c_pieces(pieces)

    def format(self, order: array[int] | None, at: int, end: int, limit: int) -> RowBatch:
        where, left, written = c_uint32(at), c_uint64(limit), c_uint64()
        places = None if order is None else c_array(order)
        out = (c_array(self._out), TEXT_BYTES, None, byref(written), byref(c_uint64()))
        code = self._library.fl_rows(self._graph, byref(self._rules()), *self._pieces, places, byref(where), end, STEPS, byref(left), *out)
        return RowBatch(str(self._view[: written.value], "ascii"), where.value, code == RARE, limit - left.value)

    def select(self, at: int, end: int) -> Selected:
        where, left, written, size = c_uint32(at), c_uint64((1 << 64) - 1), c_uint64(), c_uint64()
        indices = zeros("I", min(STEPS, max(end - at, 1)))
        out = (None, 0, c_array(indices), byref(written), byref(size))
        code = self._library.fl_rows(self._graph, byref(self._rules()), *self._pieces, None, byref(where), end, STEPS, byref(left), *out)
        return Selected(indices[: written.value], size.value, where.value, code == RARE)

    def largest_first(self, indices: array[int]) -> Iterator[array[int]]:
        made, run = zeros("I", len(indices)), 1
        while run < len(indices):
            self._library.fl_largest_first(self._blocks, c_array(indices), c_array(made), len(indices), run)
            indices, made, run = made, indices, 2 * run
            yield indices
        yield indices

    def _rules(self) -> CRules:
        """Made anew for each call: what it points to may not grow while it exists."""
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
            len(rules.label_texts),
            c_array(rules.label_texts),
            rules.typed,
            c_array(rules.characters) if rules.characters else None,
            c_array(rules.texts.data),
            c_array(rules.texts.ends),
        )
