"""Words of blocks near the roots, in which containers' heads are looked for.

A program's long-lived containers are mostly a few references away from a variable or a stack. So
blocks are visited in the order of their distance, up to a limit that costs some 0.1 s."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from findleaks.allocators.bulk import pointing
from findleaks.stale_slots.heap_memory import HeapMemory, Words
from findleaks.target.base import Piece

MAX_BLOCKS = 10_000  # that are visited
MAX_BLOCK = 1 << 16  # bytes of a block that are read: a larger one is an array or a buffer
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
            data = memory.read(start, min(size, MAX_BLOCK))
            if data:
                if visited % POLL == 0:
                    memory.poll()
                visited += 1
                piece = Piece(start, memoryview(data))
                words = Words(piece, *pointing(memory.engine, piece, memory.low, memory.high))
                self.add(words)
                yield words
