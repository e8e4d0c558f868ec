"""The aligned words of a piece of memory."""

from __future__ import annotations

import sys
from array import array
from typing import Union

from findleaks.target.arch import Arch
from findleaks.target.base import Piece

Words = Union["memoryview", "array[int]"]


def words_of(piece: Piece, arch: Arch) -> tuple[int, Words]:
    """The aligned words wholly in `piece`, and the first's address; no copy in our byte order."""
    skip = -piece.address % arch.word
    count = max(0, (len(piece.data) - skip) // arch.word)
    data = piece.data[skip : skip + count * arch.word]
    if arch.byteorder == sys.byteorder:
        return piece.address + skip, data.cast("Q") if arch.word == 8 else data.cast("I")
    swapped = array("Q" if arch.word == 8 else "I", bytes(data))
    swapped.byteswap()
    return piece.address + skip, swapped
