"""Walk links in the C engine (common/native/links.c)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import byref

from findleaks.engine.native.declarations import CWords
from findleaks.engine.native.library import CLibrary, Handle
from findleaks.engine.native.memory import CPieces, c_array


class NativeLinkWalk:
    """Walks links in the C engine; see links.LinkWalk. Takes up to 48 bytes a node."""

    def __init__(
        self, library: CLibrary, pieces: CPieces, heads: Sequence[int], offsets: Sequence[int], most: int, deepest: int, tags: int
    ) -> None:
        self._library, self._pieces = library, pieces
        # the C engine keeps the offsets
        starts, self._offsets = array("Q", heads), c_array(array("Q", offsets))
        where = (c_array(starts), len(starts), self._offsets, len(offsets))
        made = library.fl_links_new(*where, max(0, most), max(0, deepest), tags)
        self._handle = Handle(made, library.fl_links_free, "to walk a container")

    def step(self, budget: int) -> bool:
        return not self._library.fl_links_walk(self._handle, *self._pieces, max(1, budget))

    def result(self) -> tuple[array[int], bool]:
        nodes = CWords()
        trouble = self._library.fl_links_done(self._handle, byref(nodes))
        return self._library.take(nodes), not trouble
