"""Walk a search tree, in pure Python."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Optional

from findleaks.engine.trees import BOTH_RED, COLOUR, SOUND, TOO_MANY, TWICE, UNREADABLE, WRONG_PARENT, TreeLayout, tree_problem
from findleaks.target.arch import Arch
from findleaks.target.base import Piece

Read = Callable[[int, int], Optional[Sequence[int]]]  # (address, count) -> words, or None


class PureTreeWalk:
    """A walk; see trees.TreeWalk. `read` returns the words of nodes."""

    def __init__(self, read: Read, root: int, header: int, layout: TreeLayout, most: int, arch: Arch) -> None:
        self._read, self._layout, self._most, self._arch = read, layout, most, arch
        # The C engine keeps colours in parents' lowest bits.
        self._queue = deque([(root, header & ~1, bool(header & 1))])
        self._nodes: array[int] = array("Q")
        self._trouble = (SOUND, 0, 0)

    def step(self, budget: int) -> bool:
        layout = self._layout
        for _ in range(max(1, budget)):
            if not self._queue:
                return True
            node, parent, under_red = self._queue.popleft()
            words = self._read(node, layout.words) if node % self._arch.word == 0 else None
            if words is None:
                self._wrong(UNREADABLE, node, parent)
                continue
            if words[layout.parent] != parent:
                self._wrong(WRONG_PARENT, node, words[layout.parent])
                continue
            if len(self._nodes) >= self._most:
                self._wrong(TOO_MANY, node, self._most)
                self._queue.clear()
                return True
            left, right = words[layout.left], words[layout.right]
            colour = self._arch.leading(words[layout.colour], layout.colour_bytes)
            self._nodes.append(node)
            if left and left == right:
                self._wrong(TWICE, node, left)
                right = 0
            elif colour > 1:
                self._wrong(COLOUR, node, colour)
            elif not colour and under_red:
                self._wrong(BOTH_RED, node, parent)
            self._queue.extend((child, node, not colour) for child in (left, right) if child)
        return not self._queue

    def result(self) -> tuple[array[int], str]:
        return self._nodes, tree_problem(*self._trouble)

    def _wrong(self, code: int, node: int, other: int) -> None:
        if not self._trouble[0]:
            self._trouble = code, node, other


def reading(pieces: Sequence[Piece], arch: Arch) -> Read:
    """Return a function that reads words from ascending pieces; a record may continue in the next
    piece."""
    starts = [piece.address for piece in pieces]

    def read(address: int, count: int) -> Optional[Sequence[int]]:
        data, size = b"", count * arch.word
        at = bisect_right(starts, address) - 1
        while at >= 0 and len(data) < size and at < len(pieces):
            piece = pieces[at]
            offset = address + len(data) - piece.address
            if offset < 0 or offset >= len(piece.data):
                return None
            data += bytes(piece.data[offset : offset + size - len(data)])
            at += 1
        return arch.unpack(data) if len(data) == size else None

    return read
