"""The engine over the C kernel (../kernel/*.c), for little-endian 64-bit targets on such hosts."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import byref, c_uint64

from findleaks.arch import Arch
from findleaks.graph import shared
from findleaks.graph.base import Blocks, Heuristic
from findleaks.graph.kernel_blocks import KernelBlocks, Passed
from findleaks.graph.kernel_graph import KernelGraph
from findleaks.graph.kernel_library import CPiece, CWords, check
from findleaks.target.base import Piece, Range


class KernelEngine:
    """See base.Engine."""

    name = "kernel"

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._pieces: tuple[Piece, ...] = ()  # passed to follow() last
        self._passed: list[Passed] = []
        self._array = (CPiece * 0)()

    def blocks(self, arch: Arch, granule: int) -> KernelBlocks:
        """See base.Engine."""
        return KernelBlocks(self._library, arch, granule)

    def graph(self, blocks: Blocks, heuristics: Heuristic = Heuristic.NONE, vtables: Sequence[Range] = ()) -> KernelGraph:
        """See base.Engine; `blocks` must be this engine's."""
        if not isinstance(blocks, KernelBlocks):
            raise TypeError("blocks of another engine")
        return KernelGraph(self._library, blocks, heuristics, vtables)

    def follow(self, pieces: Sequence[Piece], head: int, next_offset: int, mangled: bool, limit: int) -> tuple[array[int], str]:
        """See base.Engine; `pieces` ascend (pass the same tuple again for many lists: it is converted once). A node is misaligned
        when its address is no multiple of the word size."""
        if not isinstance(pieces, tuple) or pieces is not self._pieces:
            self._passed = [Passed(piece) for piece in pieces]
            self._array = (CPiece * len(self._passed))(*(passed.piece for passed in self._passed))
            self._pieces = pieces if isinstance(pieces, tuple) else ()
        at, words = c_uint64(head), CWords()
        arguments = (byref(at), next_offset, mangled, max(0, limit), byref(words))
        code = self._library.fl_follow(self._array, len(self._passed), *arguments)
        nodes = self._taken(words)
        return nodes, shared.list_problem(check(code, "nodes"), at.value, len(nodes))

    def self_pointers(self, piece: Piece, distance: int) -> array[int]:
        """See base.Engine; `distance` may be negative."""
        words = CWords()
        code = self._library.fl_self_pointers(byref(Passed(piece).piece), distance, byref(words))
        found = self._taken(words)
        check(code, "words")
        return found

    def search(self, piece: Piece, low: int, high: int) -> array[int]:
        """See base.Engine."""
        low, high = max(low, 0), min(high, 1 << 64)
        if low >= high:
            return array("Q")
        words = CWords()
        code = self._library.fl_search(byref(Passed(piece).piece), low, high - 1 - low, byref(words))
        found = self._taken(words)
        check(code, "words")
        return found

    def _taken(self, words: CWords) -> array[int]:
        """The words that the kernel allocated, as our own."""
        taken: array[int] = array("Q")
        if words.items:
            taken.frombytes(ctypes.string_at(words.items, words.count * 8))
            self._library.fl_free(words.items)
        return taken
