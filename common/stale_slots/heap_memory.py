"""Give the modules that recognise containers access to words of memory, and to the blocks that
these words point to."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.bulk import MOST_RANGES, find_pointers_into
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.target.base import Piece, Range, Target
from findleaks.target.ranges import merge_to_most, subtract
from findleaks.value_classes import NamedTuple

MAX_BLOCK = 1 << 26  # maximum number of bytes of a block that is read as a whole
# Maximum number of addresses without a block that are cached: many words are equal
MAX_KNOWN = 1 << 16


class HeapBlock(NamedTuple):
    """A block in use: its start, and its usable bytes."""

    start: int
    size: int


class HeapPointers(NamedTuple):
    """Words of a piece of memory that may point to blocks of containers. `addresses` are the
    addresses of the words, ascending, and `values` their values."""

    piece: Piece
    addresses: array[int]
    values: Sequence[int]


class SequenceStorage(NamedTuple):
    """A sequence: its head, the blocks with its elements, and the unused parts of these blocks."""

    head: Range
    blocks: Sequence[Range]
    unused: Sequence[Range]


class HeapMemory(Memory):
    """Memory and blocks of a process.
    `poll` raises Interrupted if the user has asked to stop. `managed` are the heaps whose blocks
    are objects of interpreters, not containers of C++ or Rust. `heaps` are all heaps. Both are
    sorted."""

    def __init__(
        self,
        target: Target,
        engine: Engine,
        blocks: Blocks,
        poll: Callable[[], None],
        heaps: Sequence[Range] = (),
        managed: Sequence[Range] = (),
    ) -> None:
        super().__init__(target)
        self.engine, self.blocks, self.poll, self.managed = engine, blocks, poll, managed
        self.nodes = 0  # number of tree nodes read so far
        self.starts: dict[int, HeapBlock] = {}  # known blocks in use by their start
        self._others: set[int] = set()  # addresses at which no block starts
        # No block begins below `low` or ends above `high`.
        last = len(blocks) - 1
        self.low, self.high = (blocks.address(0), blocks.address(last) + blocks.size(last)) if len(blocks) else (0, 0)
        # Most pointers in the variables of an interpreter lead to its own heaps. The engine omits
        # these.
        self._spans = merge_to_most(subtract(heaps, managed), MOST_RANGES) if managed else [Range(self.low, self.high)]

    @cached_property
    def _registers(self) -> list[int]:
        """Values of the threads' registers, ascending."""
        return sorted(word for thread in self.target.threads() for word in thread.registers.values())

    def is_busy(self, where: Range) -> bool:
        """Whether a register of a thread contains an address in `where`, its end included.
        The thread may be moving elements there. In this case, the only reference to an element may
        be in a slot beyond the length."""
        at = bisect_left(self._registers, where.start)
        return at < len(self._registers) and self._registers[at] <= where.end

    def block_at(self, address: int) -> Optional[HeapBlock]:
        """Return the block in use that starts at `address`; None if there is none."""
        if address not in self.starts and address not in self._others and self.low <= address < self.high:
            self.find_starts({address})
        return self.starts.get(address)

    def find_starts(self, addresses: set[int]) -> set[int]:
        """Return the addresses at which blocks in use start, and cache the answers for `block_at`.
        This takes two calls of the engine, instead of one for each address."""
        if len(self._others) > MAX_KNOWN:
            self._others.clear()
        unknown = array("Q", addresses.difference(self.starts, self._others))
        found = self.blocks.columns_of(self.blocks.find_all(unknown)[0])
        for address, start, length, state in zip(unknown, *found):
            if start == address and address and address % self.size == 0 and state == State.IN_USE:
                self.starts[address] = HeapBlock(start, length)
        self._others |= addresses.difference(self.starts)
        # set.intersection would iterate over all of `starts`.
        return {address for address in addresses if address in self.starts}

    def find_pointers(self, piece: Piece) -> HeapPointers:
        """Return the aligned words of a piece that may point to containers' blocks."""
        return HeapPointers(piece, *find_pointers_into(self.engine, piece, self._spans))

    def has_pointers(self, where: Range) -> bool:
        """Whether words in `where` may point to blocks."""
        return any(self.engine.search(piece, self.low, self.high) for piece in self.target.pieces(*where))

    def contents(self, block: HeapBlock) -> tuple[int, ...]:
        """Return the words of the block; () if it is too large or unreadable."""
        return self.words(block.start, block.size // self.size) or () if block.size <= MAX_BLOCK else ()


def list_element_sizes(usable: int, count: int, word: int) -> range:
    """Return the sizes of `count` equal elements, in bytes, for which an allocator may return
    `usable` bytes.
    They are multiples of a word, the largest first. An allocator adds up to three words, or a
    quarter."""
    # Example: 40 usable bytes and 2 elements. The request was for 16 to 40 bytes, so an element has
    # 16 or 8 bytes.
    most = usable // count // word * word if count else 0
    least = max(usable - max(3 * word, usable // 4), word * count)
    return range(most, max(-(-least // count) // word * word, word) - 1, -word)


def wastes_little(usable: int, requested: int, word: int) -> bool:
    """Return whether a block of `usable` bytes is plausible for a request of `requested` bytes: an
    allocator adds little; see list_element_sizes."""
    return max(usable - max(3 * word, usable // 4), 0) <= requested <= usable
