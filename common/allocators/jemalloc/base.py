"""The base allocator (src/base.c). Its blocks contain descriptors, arenas and tree nodes.

These blocks are never root memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from findleaks.allocators.jemalloc.classes import Classes
from findleaks.allocators.jemalloc.layout import CACHELINE, FRAME, get_layouts
from findleaks.allocators.memory import Memory
from findleaks.target.base import Piece, Range

MAX_FRAMES = 4096  # the largest block: 8 GiB
MAX_BLOCKS = 1 << 16  # the largest number of blocks of one base
HEADER = "PPQPP"  # base_block_t: size, next; descriptor of the free remainder: bits, address, size
COUNTERS = ((2, 2, 5, 6), (2, 0, 1, 2), (1, 0, 1, 2))
"""By release (5.3.1, 5.3.0, 5.2; base.h): the number of words of a heap of free remainders, and the
indices of the counters allocated, resident and mapped in the words after the heaps."""
WITHIN = 512  # bytes at the start of base_t that contain its list of blocks


@dataclass
class Base:
    """A base_t. Its blocks are listed newest first. Counters are in bytes, -1 if not found."""

    address: int
    index: int
    blocks: list[Range]
    allocated: int = -1
    resident: int = -1
    mapped: int = -1


class Bases:
    """Every base that was found. Headers at aligned addresses show which block contains an
    address."""

    def __init__(self, memory: Memory, classes: Classes) -> None:
        self.memory = memory
        self.nsizes = len(classes.sizes)
        start, bitmap = 2 * memory.size, get_layouts(memory.arch).extents[0].bitmap
        self.header = -(-(start + bitmap + max(classes.bitmaps(memory.size), CACHELINE)) // CACHELINE) * CACHELINE
        self._blocks: dict[int, Optional[Range]] = {}  # by frame: the block that contains it
        self._first: dict[int, Optional[Base]] = {}
        self._pieces: tuple[Piece, ...] = ()
        self._seen = -1

    def block(self, address: int) -> Optional[Range]:
        """Return the block of a base allocator that contains `address`, or None."""
        frame = address & -FRAME
        if frame in self._blocks:
            return self._blocks[frame]
        found = None
        for at in range(frame, max(frame - MAX_FRAMES * FRAME, 0), -FRAME):
            header = self.memory.members(at, HEADER)
            if header is None:
                break
            block = self._header(at, header)
            if block is not None:
                found = block if frame < block.end else None
                break
        self._blocks[frame] = found
        return found

    def _header(self, at: int, members: Sequence[int]) -> Optional[Range]:
        """Return the block whose header at `at` has these members; None if they are not
        plausible."""
        size, after, _, rest, left = members
        if not size or size % FRAME or size > MAX_FRAMES * FRAME or after % FRAME or after == at:
            return None
        if not at < rest <= at + size or left > at + size - rest:
            return None
        return Range(at, at + size)

    def ranges(self) -> list[Range]:
        """Return the ranges of all blocks found, ascending."""
        return sorted({block for block in self._blocks.values() if block is not None})

    def pieces(self) -> tuple[Piece, ...]:
        """Return the memory of the blocks; the same tuple until another block is found."""
        if self._seen != len(self._blocks):
            self._seen = len(self._blocks)
            target = self.memory.target
            self._pieces = tuple(piece for start, end in self.ranges() for piece in target.pieces(start, end))
        return self._pieces

    def base(self, address: int) -> Optional[Base]:
        """Return the base whose first block contains `address`, and register its other blocks.
        Return None if there is no such base."""
        block = self.block(address)
        if block is None:
            return None
        if block.start not in self._first:
            self._first[block.start] = self._read(block)
        return self._first[block.start]

    def _read(self, block: Range) -> Optional[Base]:
        """Read the base_t at the start of `block` (base_new), if its list of blocks ends with
        `block`."""
        size = self.memory.size
        if self.memory.word(block.start + size) != 0:
            return None
        at = block.start + self.header
        words = self.memory.words(at, WITHIN // size) or ()
        for i, word in enumerate(words):
            if word and word % FRAME == 0:
                chain = self._chain(word, block)
                if chain:
                    return self._read_counters(Base(at, self.memory.int32(at) or 0, chain), at + size * (i + 1))
        return None

    def _chain(self, head: int, last: Range) -> list[Range]:
        """Return the blocks from `head` on if the last of them is `last`, otherwise []."""
        chain: list[Range] = []
        at = head
        while at and len(chain) < MAX_BLOCKS:
            header = self.memory.members(at, HEADER) if at % FRAME == 0 else None
            block = self._header(at, header) if header is not None else None
            if header is None or block is None:
                return []
            chain.append(block)
            if block == last:
                for each in chain:
                    for frame in range(each.start, each.end, FRAME):
                        self._blocks[frame] = each
                return chain
            at = header[1]
        return []

    def _read_counters(self, base: Base, heaps: int) -> Base:
        """Read the counters of a base. They follow the heaps of free remainders, one for each size
        class. The counter `mapped` must equal the size of the blocks."""
        total = sum(end - start for start, end in base.blocks)
        for heap, allocated, resident, mapped in COUNTERS:
            words = self.memory.words(heaps + self.nsizes * heap * self.memory.size, 8)
            if words is not None and words[mapped] == total and words[allocated] <= words[resident] <= total:
                base.allocated, base.resident, base.mapped = words[allocated], words[resident], total
                break
        return base
