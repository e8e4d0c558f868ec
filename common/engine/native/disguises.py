"""The search for disguised pointers in the C engine (common/native/disguises*.c)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import byref

from findleaks.engine.contract import Graph
from findleaks.engine.disguises import Form, Keys
from findleaks.engine.native.declarations import CWords
from findleaks.engine.native.library import CLibrary, Handle
from findleaks.engine.native.memory import c_array, c_piece, c_ranges
from findleaks.target.base import Piece, Range


class NativeDisguises:
    """A search; see disguises.Disguises. Takes 24 bytes for each word found."""

    def __init__(self, library: CLibrary, graph: Graph, handle: Handle, ranges: Sequence[Range], forms: Sequence[Form], most: int) -> None:
        # the graph must outlive its search
        self._library, self._graph = library, graph
        packed = array("Q", [word for form in forms for word in form])
        made = library.fl_disguises_new(handle, *c_ranges(ranges), c_array(packed), len(forms), most)
        self._handle = Handle(made, library.fl_disguises_free, "to search for disguised pointers")

    def scan(self, piece: Piece, step: int, roots: bool) -> None:
        self._library.fl_disguises_scan(self._handle, c_piece(piece), max(step, 1), roots)

    def tries(self) -> list[tuple[int, int]]:
        found = self._library.words(self._library.fl_disguises_tries, self._handle)
        return list(zip(found[0::2], found[1::2]))

    def keys(self, sizes: Sequence[int]) -> Keys:
        packed, (hits, heads, live) = array("Q", sizes), (CWords(), CWords(), CWords())
        self._library.fl_disguises_keys(self._handle, c_array(packed), len(packed), byref(hits), byref(heads), byref(live))
        return Keys(*map(self._library.take, (hits, heads, live)))

    def references(self, accepted: Sequence[tuple[int, int]]) -> array[int]:
        packed = array("Q", [form << 16 | offset for form, offset in accepted])
        return self._library.words(self._library.fl_disguises_references, self._handle, c_array(packed), len(packed))
