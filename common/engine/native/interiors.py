"""Interior references to possible blocks, in the C engine (common/native/interiors.c, mark.c)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import byref, c_uint32, c_uint64
from typing import Optional

from findleaks.engine.contract import Graph
from findleaks.engine.interiors import Row, Rule
from findleaks.engine.native.declarations import CWords
from findleaks.engine.native.library import NONE, CLibrary, Handle
from findleaks.engine.native.memory import c_array, c_pieces, c_ranges, zeros
from findleaks.engine.terms import Totals
from findleaks.target.base import Piece, Range


class NativeInteriors:
    """See interiors.Interiors."""

    def __init__(self, library: CLibrary, graph: Graph, handle: Handle) -> None:
        # the graph must outlive its interiors
        self._library, self._graph, self._handle = library, graph, handle
        self._read, self._accepted = c_uint64(), c_uint64()
        self._counting = Handle(library.fl_interior_count_new(handle), library.fl_interior_count_free, "for the heap's graph")

    def keys(self, budget: int) -> tuple[array[int], bool]:
        noted = c_uint64()
        self._library.fl_interior_keys(self._handle, byref(self._read), byref(noted), 0, None)
        found = zeros("Q", min(budget, noted.value - self._read.value))
        number = self._library.fl_interior_keys(self._handle, byref(self._read), byref(noted), len(found), c_array(found))
        return found[:number], self._read.value >= noted.value

    def count(self, keys: array[int]) -> None:
        self._library.fl_interior_count(self._counting, c_array(keys), len(keys))

    def rows(self, least: int) -> list[Row]:
        return sorted(Row(*row) for row in self._library.rows(3, self._library.fl_interior_rows, self._counting, least))

    def count_held(self, sizes: Sequence[int], counts: array[int], first: int, budget: int) -> int:
        at, packed = c_uint32(first), array("Q", sizes)
        self._library.fl_interior_held(self._handle, c_array(packed), len(packed), c_array(counts), byref(at), budget)
        return at.value

    def accept(self, rules: Sequence[Rule], budget: int) -> bool:
        packed, before = _pack(rules), self._accepted.value
        self._library.fl_interior_accept(self._handle, c_array(packed), len(rules), byref(self._accepted), budget)
        return self._accepted.value - before < budget

    def promote(self, budget: int) -> bool:
        return not self._library.fl_promote(self._handle, max(1, budget))

    def effect(self, keys: array[int], rules: Sequence[Rule]) -> list[Totals]:
        packed, sums, last = _pack(rules), zeros("Q", 2 * len(rules)), c_uint32(NONE)
        self._library.fl_interior_effect(self._handle, c_array(keys), len(keys), c_array(packed), len(rules), c_array(sums), byref(last))
        return [Totals(*pair) for pair in zip(sums[0::2], sums[1::2])]

    def places(self, most: int) -> Optional[array[int]]:
        found = CWords()
        few = self._library.fl_structures_places(self._handle, most, byref(found))
        words = self._library.take(found)
        return words if few else None

    def examine(self, pieces: Sequence[Piece], code: Sequence[Range], credit: int, php: bool, links: bool = False) -> NativeExamination:
        return NativeExamination(self._library, self._graph, self._handle, pieces, code, credit, php, links)


class NativeExamination:
    """See interior_structures.Examination (common/native/interior_structures.c)."""

    def __init__(
        self,
        library: CLibrary,
        graph: Graph,
        handle: Handle,
        pieces: Sequence[Piece],
        code: Sequence[Range],
        credit: int,
        php: bool,
        links: bool,
    ) -> None:
        # The graph must outlive this examination, and the C engine keeps a pointer to the ranges.
        self._library, self._graph = library, graph
        self._pieces, self._code = c_pieces(pieces), c_ranges(code)
        made = library.fl_structures_new(handle, *self._code, credit, php, links)
        self._handle = Handle(made, library.fl_structures_free, "to examine interior references")

    def step(self, budget: int) -> bool:
        return not self._library.fl_structures_examine(self._handle, *self._pieces, max(1, budget))

    def list_accepted(self) -> array[int]:
        return self._library.words(self._library.fl_structures_found, self._handle)


def _pack(rules: Sequence[Rule]) -> array[int]:
    return array("Q", [word for rule in rules for word in rule])
