"""Read a process that runs: its memory as it is now, not as it was when the target was opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.target.base import Target

_BLOCK = 4096  # bytes of a read


class CurrentMemory(Memory):
    """The current memory of a process, which is read in blocks of _BLOCK bytes, each of them once.
    Mappings that are newer than the target are included."""

    def __init__(self, target: Target, read: Callable[[int, int], bytes]) -> None:
        """`read` reads a number of bytes at an address. It returns fewer bytes if a part of them is
        not mapped."""
        super().__init__(target)
        self._read = read
        self._blocks: dict[int, bytes] = {}

    def read(self, address: int, size: int) -> bytes:
        low, high = address & -_BLOCK, address + size
        if low < 0 or size < 1:
            return b""
        if high - low > _BLOCK:
            data = self._read(address, size)
            return data if len(data) == size else b""
        block = self._blocks.get(low)
        if block is None:
            block = self._blocks[low] = self._read(low, _BLOCK)
        data = block[address - low : high - low]
        return data if len(data) == size else b""

    def word(self, address: int) -> Optional[int]:
        words = self.words(address, 1)
        return words[0] if words else None

    def words(self, address: int, count: int) -> Optional[tuple[int, ...]]:
        data = self.read(address, count * self.size)
        return self.arch.unpack(data) if data else None
