"""Walking a search tree in the C kernel (common/kernel/trees.c)."""

from __future__ import annotations

import ctypes
from array import array
from ctypes import c_uint64

from findleaks.engine.kernel.library import CWords, check, take_words
from findleaks.engine.kernel.memory import CPieces, c_array
from findleaks.engine.trees import TreeLayout, tree_problem


class KernelTreeWalk:
    """See trees.TreeWalk."""

    def __init__(self, library: ctypes.CDLL, pieces: CPieces, root: int, header: int, layout: TreeLayout, most: int) -> None:
        self._handle = 0
        self._library, self._pieces = library, pieces
        self._handle = library.fl_tree_new(root, header, c_array(array("Q", layout)), most)
        if not self._handle:
            raise MemoryError("not enough memory to walk a tree")

    def __del__(self) -> None:
        if self._handle:
            self._library.fl_tree_free(self._handle)

    def step(self, budget: int) -> bool:
        """See trees.TreeWalk."""
        return check(self._library.fl_tree_walk(self._handle, *self._pieces, max(1, budget)), "nodes") == 0

    def result(self) -> tuple[array[int], str]:
        """See trees.TreeWalk; once only."""
        nodes, trouble = CWords(), (c_uint64 * 3)()
        self._library.fl_tree_done(self._handle, ctypes.byref(nodes), trouble)
        return take_words(self._library, nodes), tree_problem(*trouble)
