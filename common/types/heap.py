"""Read a process for the search for types: its blocks, their memory, and their claims."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Optional

from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.engine.type_spread import LAYOUT_MASK
from findleaks.target.arch import Arch
from findleaks.target.base import Piece
from findleaks.value_classes import NamedTuple


class Place(NamedTuple):
    """A place in a block: the block's index, start and usable size, and the offset in it."""

    block: int
    start: int
    size: int
    offset: int


class HeapView:
    """Blocks in use, and the words of their memory. `headers`: see HeaderedBlocks."""

    def __init__(self, arch: Arch, blocks: Blocks, pieces: Sequence[Piece], headers: Sequence[int] = ()) -> None:
        self.arch, self.blocks, self.headers = arch, blocks, headers
        self._pieces = pieces
        self._starts = [piece.address for piece in pieces]
        self.claims: Sequence[int] = ()

    def bytes(self, address: int, size: int) -> bytes:
        """Return up to `size` bytes; fewer if some are missing."""
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return b""
        piece = self._pieces[at]
        offset = address - piece.address
        return bytes(piece.data[offset : offset + size])

    def word(self, address: int) -> Optional[int]:
        """Return the word at an address; None if it is missing."""
        data = self.bytes(address, self.arch.word)
        return int.from_bytes(data, self.arch.byteorder) if len(data) == self.arch.word else None

    def number(self, address: int, size: int) -> int:
        """Return the number of `size` bytes at an address; 0 if it is missing."""
        data = self.bytes(address, size)
        return int.from_bytes(data, self.arch.byteorder) if len(data) == size else 0

    def place(self, address: int) -> Optional[Place]:
        """Return the block in use that contains an address."""
        found = self.blocks.lookup(address)
        if found is None or found[3] != State.IN_USE:
            return None
        return Place(found[0], found[1], found[2], address - found[1])

    def layout(self, index: int) -> int:
        """Return the layout of a block; 0 if it has none, or is disputed."""
        return self.claims[index] & LAYOUT_MASK
