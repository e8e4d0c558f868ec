"""Reads words of an untrusted process image: absent memory yields None, never an exception."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.errors import Interrupted, UnreadableMemory
from findleaks.target.base import Target
from findleaks.target.ranges import nonzero_pieces


class Memory:
    """A target's words. `word(address)` is None for absent memory or an invalid address."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.arch = target.arch
        self.size = target.arch.word

    def read(self, address: int, size: int) -> bytes:
        """The bytes, or b"" unless all can be read."""
        try:
            return self.target.read(address, size)
        except UnreadableMemory:
            return b""

    def word(self, address: int) -> Optional[int]:
        if not 0 < address < self.arch.mask - self.size:
            return None
        try:
            return self.target.word(address)
        except UnreadableMemory:
            return None

    def words(self, address: int, count: int) -> Optional[tuple[int, ...]]:
        """`count` words, or None unless all can be read."""
        if not 0 < address < self.arch.mask - count * self.size:
            return None
        try:
            return self.arch.unpack(self.target.read(address, count * self.size))
        except UnreadableMemory:
            return None

    def members(self, address: int, kinds: str) -> Optional[tuple[int, ...]]:
        """The members of a structure of these kinds (Arch.structure), or None unless all can be
        read."""
        form = self.arch.structure(kinds)
        data = self.read(address, form.size) if 0 < address < self.arch.mask - form.size else b""
        return form.unpack(data) if data else None

    def longs(self, address: int, words: int) -> Sequence[int]:
        """The 64-bit numbers that may begin at each of so many words; () unless all can be read."""
        read = self.words(address, words) or ()
        if self.size == 8:
            return read
        pairs = zip(read, read[1:]) if self.arch.byteorder == "little" else zip(read[1:], read)
        return [low | high << 32 for low, high in pairs]

    def int32(self, address: int) -> Optional[int]:
        """An unsigned 32-bit int."""
        data = self.read(address, 4) if 0 < address < self.arch.mask - 4 else b""
        return int.from_bytes(data, self.arch.byteorder) if data else None

    def halves(self, word: int) -> tuple[int, int]:
        """The two 32-bit numbers that share a word of 8 bytes, in memory's order."""
        low, high = word & 0xFFFFFFFF, word >> 32
        return (low, high) if self.arch.byteorder == "little" else (high, low)

    def scan(self, start: int, end: int) -> Iterator[tuple[int, Sequence[int]]]:
        """(address, words) of each readable part of [start, end). Raises Interrupted."""
        for piece in nonzero_pieces(self.target, start, end):
            if self.target.interrupted():
                raise Interrupted
            skip = -piece.address % self.size
            data = piece.data[skip:]
            if len(data) >= self.size:
                yield piece.address + skip, self.arch.unpack(bytes(data))
