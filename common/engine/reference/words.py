"""Read the aligned words of a piece of memory."""

from __future__ import annotations

from findleaks.target.arch import Arch, Words
from findleaks.target.base import Piece


def words_of(piece: Piece, arch: Arch) -> tuple[int, Words]:
    """Return the address of the first aligned word that is completely in `piece`, and a view of all
    such words. Words in the host's byte order are not copied."""
    skip = -piece.address % arch.word
    count = max(0, (len(piece.data) - skip) // arch.word)
    return piece.address + skip, arch.words(piece.data[skip : skip + count * arch.word])
