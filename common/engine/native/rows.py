"""Rows and columns of blocks, formatted by the C engine (common/native/rows.c)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from ctypes import byref, c_uint32, c_uint64

from findleaks.engine.native.declarations import CRowColumns, CRules
from findleaks.engine.native.library import CLibrary, Handle
from findleaks.engine.native.memory import c_array, c_pieces, c_ranges, zeros
from findleaks.engine.rows import RowBatch, RowColumns, RowRules, Selected
from findleaks.target.base import Piece

TEXT_BYTES = 256 << 10  # bytes of text formatted in one call: about a millisecond
STEPS = 1 << 16  # blocks visited in one call
ROWS = 1 << 14  # blocks visited in one call for columns
RARE = 1


class NativeRows:
    """See rows.Rows."""

    def __init__(self, library: CLibrary, graph: Handle, blocks: Handle, rules: RowRules) -> None:
        self._library, self._graph, self._blocks = library, graph, blocks
        self.rules = rules
        self._owners, self._tables, self._mapped = (c_ranges(ranges)[0] for ranges in (rules.owners, rules.tables, rules.mapped))
        self._pieces = c_pieces(())
        self._out = bytearray(TEXT_BYTES)
        self._view = memoryview(self._out)
        self._columns: tuple[array[int], ...] = ()

    def use(self, pieces: Sequence[Piece]) -> None:
        self._pieces = c_pieces(pieces)

    def format(self, order: array[int] | None, at: int, end: int, limit: int) -> RowBatch:
        where, left, written = c_uint32(at), c_uint64(limit), c_uint64()
        places = None if order is None else c_array(order)
        out = (c_array(self._out), TEXT_BYTES, byref(written))
        code = self._library.fl_rows(self._graph, byref(self._rules()), *self._pieces, places, byref(where), end, STEPS, byref(left), *out)
        return RowBatch(str(self._view[: written.value], "ascii"), where.value, code == RARE, limit - left.value)

    def columns(self, order: array[int] | None, at: int, end: int, limit: int) -> RowColumns:
        where, left, written = c_uint32(at), c_uint64(limit), c_uint64()
        places = None if order is None else c_array(order)
        self._columns = self._columns or tuple(zeros(code, ROWS) for code in "IQQQBI")
        out = CRowColumns(*map(c_array, self._columns), c_array(self._out), TEXT_BYTES)
        code = self._library.fl_row_columns(
            self._graph, byref(self._rules()), *self._pieces, places, byref(where), end, ROWS, byref(left), byref(out), byref(written)
        )
        indices, addresses, sizes, names, hints, ends = (memoryview(column)[: written.value] for column in self._columns)
        text = self._view[: ends[-1] if written.value else 0].tobytes()
        return RowColumns(indices, addresses, sizes, names, hints, ends, text, where.value, code == RARE)

    def select(self, at: int, end: int) -> Selected:
        where, written, size = c_uint32(at), c_uint64(), c_uint64()
        indices = zeros("I", min(STEPS, max(end - at, 1)))
        out = (c_array(indices), byref(written), byref(size))
        code = self._library.fl_row_indices(self._graph, byref(self._rules()), *self._pieces, byref(where), end, STEPS, *out)
        return Selected(indices[: written.value], size.value, where.value, code == RARE)

    def largest_first(self, indices: array[int]) -> Iterator[array[int]]:
        made, run = zeros("I", len(indices)), 1
        while run < len(indices):
            self._library.fl_largest_first(self._blocks, c_array(indices), c_array(made), len(indices), run)
            indices, made, run = made, indices, 2 * run
            yield indices
        yield indices

    def _rules(self) -> CRules:
        """Return the rules for one call. The arrays that they point to cannot grow while the result
        exists."""
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
            c_array(rules.marks) if rules.mark_texts else None,
            c_array(rules.mark_texts) if rules.mark_texts else None,
            rules.typed,
            c_array(rules.characters) if rules.characters else None,
            c_array(rules.texts.data),
            c_array(rules.texts.ends),
        )
