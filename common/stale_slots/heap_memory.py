"""What recognisers of containers read: words of memory, and the blocks that these point to."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.target.base import Piece, Range, Target
from findleaks.value_classes import NamedTuple

MAX_BLOCK = 1 << 26  # bytes of a block that is read whole


class HeapBlock(NamedTuple):
    """A block in use: its start, and its usable bytes."""

    start: int
    size: int


class Words(NamedTuple):
    """Words of a piece of memory that point into the heaps: addresses, ascending, and values."""

    piece: Piece
    addresses: array[int]
    values: Sequence[int]


class Storage(NamedTuple):
    """A sequence's head, the blocks that it keeps elements in, and their unused parts."""

    head: Range
    blocks: Sequence[Range]
    unused: Sequence[Range]


class HeapMemory(Memory):
    """Memory and blocks of one moment of a process. `poll` raises Interrupted if the user asked to
    stop."""

    def __init__(self, target: Target, engine: Engine, blocks: Blocks, poll: Callable[[], None]) -> None:
        super().__init__(target)
        self.engine, self.blocks, self.poll = engine, blocks, poll
        self.nodes = 0  # of trees, that were read
        # No block begins below `low` or ends above `high`.
        last = len(blocks) - 1
        self.low, self.high = (blocks.address(0), blocks.address(last) + blocks.size(last)) if len(blocks) else (0, 0)

    @cached_property
    def _registers(self) -> list[int]:
        """The words in threads' registers, ascending."""
        return sorted(word for thread in self.target.threads() for word in thread.registers.values())

    def is_busy(self, where: Range) -> bool:
        """Whether a thread has an address in `where`, its end included, in a register: it may be
        about to move elements there, and then only a slot beyond the length has one."""
        at = bisect_left(self._registers, where.start)
        return at < len(self._registers) and self._registers[at] <= where.end

    def block_at(self, address: int) -> Optional[HeapBlock]:
        """The block in use that starts at `address`; None otherwise."""
        found = self.blocks.lookup(address) if address and address % self.size == 0 else None
        return HeapBlock(found[1], found[2]) if found is not None and found[1] == address and found[3] == State.IN_USE else None

    def has_pointers(self, where: Range) -> bool:
        """Whether there are words in `where` that may point to blocks."""
        return any(self.engine.search(piece, self.low, self.high) for piece in self.target.pieces(*where))

    def contents(self, block: HeapBlock) -> tuple[int, ...]:
        """The block's words; () if it is too large, or cannot be read."""
        return self.words(block.start, block.size // self.size) or () if block.size <= MAX_BLOCK else ()


def request_sizes(usable: int, count: int, word: int) -> range:
    """Sizes of `count` equal elements, in whole words, for which an allocator may have given
    `usable` bytes: the largest first. An allocator adds up to three words, or a quarter."""
    most = usable // count // word * word if count else 0
    least = max(usable - max(3 * word, usable // 4), word * count)
    return range(most, max(-(-least // count) // word * word, word) - 1, -word)


def wastes_little(usable: int, requested: int, word: int) -> bool:
    """Whether an allocator may have given `usable` bytes for `requested`; see request_sizes."""
    return max(usable - max(3 * word, usable // 4), 0) <= requested <= usable
