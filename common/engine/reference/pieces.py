"""Memory of a target in several pieces, for the Python engine."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Optional

from findleaks.target.arch import Arch
from findleaks.target.base import Piece


class Pieces:
    """Memory in ascending pieces."""

    def __init__(self, pieces: Sequence[Piece], arch: Arch) -> None:
        self.pieces, self.arch = pieces, arch
        self._starts = [piece.address for piece in pieces]

    def part(self, address: int, most: int) -> memoryview:
        """Return up to `most` bytes of one piece from `address` on; empty if they are missing."""
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return memoryview(b"")
        offset = address - self._starts[at]
        return self.pieces[at].data[offset : offset + most]

    def bytes(self, address: int, size: int) -> Optional[bytes]:
        """Return `size` bytes; None if any of them is missing."""
        found = b""
        while len(found) < size:
            part = self.part(address + len(found), size - len(found))
            if not part:
                return None
            found += bytes(part)
        return found

    def word(self, address: int) -> Optional[int]:
        """Return a word; None unless it is completely in one piece."""
        part = self.part(address & self.arch.mask, self.arch.word)
        return int.from_bytes(part, self.arch.byteorder) if len(part) == self.arch.word else None
