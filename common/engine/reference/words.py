"""The aligned words of a piece of memory."""

from __future__ import annotations

from findleaks.target.arch import Arch, Words
from findleaks.target.base import Piece


def words_of(piece: Piece, arch: Arch) -> tuple[int, Words]:
    """The aligned words wholly in `piece`, and the first's address; no copy in our byte order."""
    skip = -piece.address % arch.word
    count = max(0, (len(piece.data) - skip) // arch.word)
    return piece.address + skip, arch.words(piece.data[skip : skip + count * arch.word])
