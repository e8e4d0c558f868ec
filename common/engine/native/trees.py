"""Walk a search tree in the C engine (common/native/trees.c)."""

from __future__ import annotations

from array import array
from ctypes import byref, c_uint64

from findleaks.engine.native.declarations import CWords
from findleaks.engine.native.library import CLibrary, Handle
from findleaks.engine.native.memory import CPieces, c_array
from findleaks.engine.trees import TreeLayout, tree_problem


class NativeTreeWalk:
    """See trees.TreeWalk."""

    def __init__(self, library: CLibrary, pieces: CPieces, root: int, header: int, layout: TreeLayout, most: int) -> None:
        self._library, self._pieces = library, pieces
        made = library.fl_tree_new(root, header, c_array(array("Q", layout)), most)
        self._handle = Handle(made, library.fl_tree_free, "to walk a tree")

    def step(self, budget: int) -> bool:
        return not self._library.fl_tree_walk(self._handle, *self._pieces, max(1, budget))

    def result(self) -> tuple[array[int], str]:
        nodes, trouble = CWords(), (c_uint64 * 3)()
        self._library.fl_tree_done(self._handle, byref(nodes), trouble)
        return self._library.take(nodes), tree_problem(*trouble)
