"""Words of blocks near the roots, in which containers' heads are looked for.

A program's long-lived containers are mostly a few references away from a variable or a stack. So
blocks are visited in the order of their distance, up to a limit that costs some 30 ms."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator

from findleaks.allocators.bulk import find_pointers
from findleaks.stale_slots.heap_memory import HeapMemory, Words
from findleaks.target.base import Piece

MAX_BLOCKS = 3_000  # that are visited
MAX_BLOCK = 1 << 12  # bytes of a block that are read: what is behind is an array or a buffer
FEW_WORDS = 64  # of a block: a loop over so many is faster than calls of the engine
POLL = 256  # blocks between two polls for an interrupt


class NearBlocks:
    """Blocks by their distance from the roots. `referrers` has, for the start of each block that
    was met, the address of the word that it was met by."""

    def __init__(self, memory: HeapMemory) -> None:
        self._memory = memory
        self._waiting: deque[tuple[int, int]] = deque()  # starts and sizes
        self.referrers: dict[int, int] = {}

    def add(self, words: Words) -> None:
        """Note the blocks that these words refer to, up to the limit."""
        lookup, referrers = self._memory.block_at, self.referrers
        for address, value in zip(words.addresses, words.values):
            if len(referrers) >= MAX_BLOCKS:
                return
            if value not in referrers:
                block = lookup(value)
                if block is not None:
                    referrers[value] = address
                    self._waiting.append(block)

    def visit(self) -> Iterator[Words]:
        """The words of all blocks within the limit that were noted or are met from these."""
        memory, visited = self._memory, 0
        while self._waiting:
            start, size = self._waiting.popleft()
            data = memory.read(start, min(size, MAX_BLOCK) // memory.size * memory.size)
            if visited % POLL == 0:
                memory.poll()
            visited += 1
            words = self._pointing(Piece(start, memoryview(data))) if data else None
            if words is not None and len(words.addresses):
                self.add(words)
                yield words

    def _pointing(self, piece: Piece) -> Words:
        """The words of a block that point into the heaps."""
        memory = self._memory
        low, high, size = memory.low, memory.high, memory.size
        if len(piece.data) > FEW_WORDS * size:
            return Words(piece, *find_pointers(memory.engine, piece, low, high))
        found = [(at, value) for at, value in enumerate(memory.arch.unpack(bytes(piece.data))) if low <= value < high]
        return Words(piece, array("Q", [piece.address + at * size for at, _ in found]), [value for _, value in found])
