"""Read words of structures in an untrusted process image."""

from __future__ import annotations

from findleaks.errors import UnreadableMemory
from findleaks.target.base import Target


def word_at(target: Target, address: int) -> int:
    """Return the word at an address; 0, which is not a pointer, if it is unreadable."""
    try:
        return target.word(address)
    except UnreadableMemory:
        return 0


def words_at(target: Target, address: int, size: int) -> tuple[int, ...]:
    """Return the words of [address, address + size); fewer if a part is unreadable."""
    data = b""
    for piece in target.pieces(address, address + size):
        if piece.address != address + len(data):
            break
        data += bytes(piece.data)
    return target.arch.unpack(data)
