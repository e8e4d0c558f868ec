"""What recognisers of containers read: words of memory, and the blocks that these point to."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.target.base import Target


class HeapBlock(NamedTuple):
    """A block in use: its start, and its usable bytes."""

    start: int
    size: int


class HeapMemory(Memory):
    """Memory and blocks of one moment of a process. `poll` raises Interrupted if the user asked to
    stop."""

    def __init__(self, target: Target, engine: Engine, blocks: Blocks, poll: Callable[[], None]) -> None:
        super().__init__(target)
        self.engine, self.blocks, self.poll = engine, blocks, poll

    def block_at(self, address: int) -> Optional[HeapBlock]:
        """The block in use that starts at `address`; None otherwise."""
        found = self.blocks.lookup(address) if address and address % self.size == 0 else None
        return HeapBlock(found[1], found[2]) if found is not None and found[1] == address and found[3] == State.IN_USE else None

    def contents(self, block: HeapBlock) -> tuple[int, ...]:
        """The block's words; () if it cannot be read."""
        return self.words(block.start, block.size // self.size) or ()


def request_sizes(usable: int, count: int, word: int) -> range:
    """Sizes of `count` equal elements, in whole words, for which an allocator may have given
    `usable` bytes: the largest first. An allocator adds up to three words, or a quarter."""
    most = usable // count // word * word if count else 0
    least = max(usable - max(3 * word, usable // 4), word * count)
    return range(most, max(-(-least // count) // word * word, word) - 1, -word)
