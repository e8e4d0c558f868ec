"""Words of blocks near the roots, which are searched for heads of containers.

A program's long-lived containers are usually a few references away from a variable or a stack.
Blocks are therefore visited by distance, up to a limit that costs about 30 ms."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.stale_slots.heap_memory import HeapMemory, HeapPointers
from findleaks.target.base import Piece
from findleaks.target.ranges import range_at

MAX_BLOCKS = 3_000  # maximum number of blocks that are visited
# Maximum number of bytes of a block that are read: the rest is an array or a buffer
MAX_BLOCK = 1 << 12
FEW_WORDS = 64  # up to this number of words in a block, a loop is faster than calls of the engine
POLL = 256  # blocks between two polls for an interrupt


class NearBlocks:
    """Blocks by their distance from the roots, without objects of interpreters.
    `referrers` maps the start of a visited block to the address of the word that refers to it."""

    def __init__(self, memory: HeapMemory) -> None:
        self._memory = memory
        self._waiting: list[tuple[int, int]] = []  # starts and sizes of blocks to visit
        self.referrers: dict[int, int] = {}

    def add(self, many: Sequence[HeapPointers]) -> None:
        """Add the blocks that these words refer to, up to the limit."""
        referrers, managed = self.referrers, self._memory.managed
        if len(referrers) >= MAX_BLOCKS:
            return
        first: dict[int, int] = {}  # the first word with each value
        for words in reversed(many):
            first.update(zip(reversed(words.values), reversed(words.addresses)))
        for value in sorted(self._memory.find_starts(first.keys() - referrers.keys()), key=first.__getitem__):
            if range_at(managed, value) is not None:
                continue
            referrers[value] = first[value]
            self._waiting.append(self._memory.starts[value])
            if len(referrers) >= MAX_BLOCKS:
                return

    def visit(self) -> Iterator[HeapPointers]:
        """Yield the words of all added blocks, and of the blocks that these refer to, up to the
        limit."""
        memory = self._memory
        while self._waiting:
            # One distance at a time, so that the engine looks up all blocks of it at once.
            level, self._waiting = self._waiting, []
            found: list[HeapPointers] = []
            for number, (start, size) in enumerate(level):
                data = memory.read(start, min(size, MAX_BLOCK) // memory.size * memory.size)
                if number % POLL == 0:
                    memory.poll()
                words = self._pointing(start, data) if data else None
                if words is not None:
                    found.append(words)
            self.add(found)
            yield from found

    def _pointing(self, start: int, data: bytes) -> Optional[HeapPointers]:
        """Return the words of a block that point into the heaps; None if there are none."""
        memory, piece = self._memory, Piece(start, memoryview(data))
        low, high, size = memory.low, memory.high, memory.size
        if len(data) > FEW_WORDS * size:
            words = memory.find_pointers(piece)
            return words if words.addresses else None
        values = memory.arch.unpack(data)
        found = [at for at, value in enumerate(values) if low <= value < high]
        if not found:
            return None
        return HeapPointers(piece, array("Q", [start + at * size for at in found]), [values[at] for at in found])
