"""Read words of an untrusted process image. Unreadable memory yields None, never an exception."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.errors import Interrupted, UnreadableMemory
from findleaks.target.base import Piece, Target
from findleaks.target.ranges import nonzero_pieces

STRING_STEP = 64  # bytes of one read of a string


class Memory:
    """The words of a target. `size` is the size of a word in bytes."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.arch = target.arch
        self.size = target.arch.word

    def read(self, address: int, size: int) -> bytes:
        """Read `size` bytes, or return b"" if some of them cannot be read."""
        try:
            return self.target.read(address, size)
        except UnreadableMemory:
            return b""

    def c_string(self, address: int, most: int) -> bytes:
        """Read the string at `address` up to its NUL byte, to `most` bytes, or to the first
        unreadable byte."""
        data = b""
        while address and len(data) < most and b"\0" not in data:
            # Read up to the next multiple of STRING_STEP, because the page after the string may be
            # missing.
            at = address + len(data)
            part = self.read(at, min(most - len(data), STRING_STEP - at % STRING_STEP))
            if not part:
                break
            data += part
        return data.split(b"\0", 1)[0]

    def word(self, address: int) -> Optional[int]:
        """Read the word at `address`, or return None if it is unreadable or the address is
        invalid."""
        if not 0 < address < self.arch.mask - self.size:
            return None
        try:
            return self.target.word(address)
        except UnreadableMemory:
            return None

    def words(self, address: int, count: int) -> Optional[tuple[int, ...]]:
        """Read `count` words, or return None if some of them cannot be read."""
        if not 0 < address < self.arch.mask - count * self.size:
            return None
        try:
            return self.arch.unpack(self.target.read(address, count * self.size))
        except UnreadableMemory:
            return None

    def members(self, address: int, kinds: str) -> Optional[tuple[int, ...]]:
        """Read the members of a structure, or return None if some cannot be read. `kinds` gives the
        sort of each member (see Arch.structure)."""
        form = self.arch.structure(kinds)
        data = self.read(address, form.size) if 0 < address < self.arch.mask - form.size else b""
        return form.unpack(data) if data else None

    def longs(self, address: int, words: int) -> Sequence[int]:
        """Read the 64-bit numbers that may start at each of `words` words from `address` on, or
        return () if some cannot be read. With words of 4 bytes, number i consists of the words i
        and i + 1."""
        read = self.words(address, words) or ()
        if self.size == 8:
            return read
        pairs = zip(read, read[1:]) if self.arch.byteorder == "little" else zip(read[1:], read)
        return [low | high << 32 for low, high in pairs]

    def int32(self, address: int) -> Optional[int]:
        """Read an unsigned 32-bit integer, or return None."""
        data = self.read(address, 4) if 0 < address < self.arch.mask - 4 else b""
        return int.from_bytes(data, self.arch.byteorder) if data else None

    def halves(self, word: int) -> tuple[int, int]:
        """Divide a word of 8 bytes into two 32-bit numbers, in the order in which they are in
        memory."""
        low, high = word & 0xFFFFFFFF, word >> 32
        return (low, high) if self.arch.byteorder == "little" else (high, low)

    def read_whole(self, low: int, high: int, size: int) -> Iterator[Piece]:
        """Yield the readable parts of [low, high), cut to whole blocks of `size` bytes. The first
        block begins at `low`."""
        pieces = list(self.target.pieces(low, high))
        # Memory in one piece is not copied. A block may be in two pieces that can be read together.
        whole = self.read(low, high - low) if len(pieces) > 1 else b""
        if whole:
            yield Piece(low, memoryview(whole))
            return
        for piece in pieces:
            first = low + -(-(piece.address - low) // size) * size
            end = low + (piece.address + len(piece.data) - low) // size * size
            if first < end:
                yield Piece(first, piece.data[first - piece.address : end - piece.address])

    def scan(self, start: int, end: int) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield (address, words) for each readable part of [start, end). Raises Interrupted."""
        for piece in nonzero_pieces(self.target, start, end):
            if self.target.is_interrupted():
                raise Interrupted
            skip = -piece.address % self.size
            data = piece.data[skip:]
            if len(data) >= self.size:
                yield piece.address + skip, self.arch.unpack(bytes(data))
