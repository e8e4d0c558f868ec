"""Walking links in the C kernel (common/kernel/links.c)."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence

from findleaks.engine.kernel.library import CWords, check, take_words
from findleaks.engine.kernel.memory import CPieces, c_array


class KernelLinkWalk:
    """See links.LinkWalk. Up to 48 bytes a node."""

    def __init__(
        self,
        library: ctypes.CDLL,
        pieces: CPieces,
        heads: Sequence[int],
        offsets: Sequence[int],
        most: int,
        deepest: int,
    ) -> None:
        self._handle = 0
        self._library, self._pieces = library, pieces
        # the kernel keeps the offsets
        starts, self._offsets = array("Q", heads), c_array(array("Q", offsets))
        where = (c_array(starts), len(starts), self._offsets, len(offsets))
        self._handle = library.fl_links_new(*where, max(0, most), max(0, deepest))
        if not self._handle:
            raise MemoryError("not enough memory to walk a container")

    def __del__(self) -> None:
        if self._handle:
            self._library.fl_links_free(self._handle)

    def step(self, budget: int) -> bool:
        """See links.LinkWalk."""
        return check(self._library.fl_links_walk(self._handle, *self._pieces, max(1, budget)), "nodes") == 0

    def result(self) -> tuple[array[int], bool]:
        """See links.LinkWalk; once only."""
        nodes = CWords()
        trouble = self._library.fl_links_done(self._handle, ctypes.byref(nodes))
        return take_words(self._library, nodes), not trouble
