"""Read scudo's large blocks, each of which has a separate mapping, and the mappings of freed large
blocks that scudo keeps.

Source: scudo/standalone/secondary.h of LLVM 14 to 23 (MapAllocator, MapAllocatorCache).
MapAllocator follows the records of the classes. Its members differ from version to version.
Therefore, they are found by their contents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.scudo.checksum import UNKNOWN, checksum_of
from findleaks.allocators.scudo.engine import ClassKey
from findleaks.allocators.scudo.layout import ALLOCATED, HEADER, MARKER, SECONDARY_BYTES, unpack
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges, range_at

LOWER = 0xFFFFFFFF
MOST_LARGE = 1 << 20  # large blocks that are read
LARGEST = 1 << 44  # bytes of a mapping
COUNTS = (7, 6)
"""The index of the word {allocations 4, frees 4} after the list of blocks {count, first, last},
newest first. LLVM 19 added the bytes of fragments before it."""


class LargeList(NamedTuple):
    """The list of large blocks in use, and the counters after it, in MapAllocator. `blocks` is the
    number of blocks in use."""

    address: int
    blocks: int
    first: int
    last: int
    allocated: int  # bytes
    freed: int  # bytes
    allocations: int
    frees: int


class Large(NamedTuple):
    """A large block in use: its mapping, and its chunk. `header` is the address of the chunk's
    header."""

    mapping: Range
    header: int
    chunk: int
    size: int


def find_list(memory: Memory, end: int) -> Optional[LargeList]:
    """Return the list in MapAllocator, which begins at `end`; None if scudo has never allocated a
    large block."""
    words = memory.words(end, SECONDARY_BYTES // 8) or ()
    for at in range(len(words) - max(COUNTS)):
        count, first, last, allocated, freed = words[at : at + 5]
        if count > MOST_LARGE or (count == 0) != (first == 0) or (first == 0) != (last == 0) or freed > allocated or not allocated:
            continue
        for place in COUNTS:
            allocations, frees = memory.halves(words[at + place])
            if allocations and (allocations - frees) & LOWER == count and (count > 0) == (allocated > freed):
                if first % HEADER == last % HEADER == 0 and (not count or memory.word(first) == 0):
                    return LargeList(end + 8 * at, count, first, last, allocated, freed, allocations, frees)
    return None


def read_list(memory: Memory, found: LargeList, header: int, key: ClassKey, problems: list[Problem]) -> list[Large]:
    """Return the large blocks in use, by ascending address of their mappings. `header` is the
    number of words of LargeBlock::Header."""
    blocks, at, before, seen = [], found.first, 0, 0
    while at and seen < found.blocks:
        words = memory.words(at, header)
        one = _read_block(memory, at, words, key, problems) if words and words[0] == before else None
        if words is None or one is None:
            break
        blocks.append(one)
        before, at, seen = at, words[1], seen + 1
    if at or seen != found.blocks:
        what = f"scudo's list of large blocks at {found.address:#x} is damaged near {at:#x}: {found.blocks - seen:,} of them are not read"
        problems.append(Problem(at or found.address, what))
    blocks.sort()
    apart = [one for one, other in zip(blocks, blocks[1:]) if one.mapping.end <= other.mapping.start]
    return [*apart, *blocks[-1:]]


def _read_block(memory: Memory, at: int, words: Sequence[int], key: ClassKey, problems: list[Problem]) -> Optional[Large]:
    """Read the large block whose LargeBlock::Header is at `at`; None if that is damaged."""
    page, start, size = memory.target.arch.page, *words[2:4]
    end, header = start + size, at + 8 * len(words)
    if start % page or size % page or not 0 < size < LARGEST or not start <= at <= end - 8 * len(words) - HEADER:
        return None
    word, offset = memory.word(header), 0
    if word is not None and word & LOWER == MARKER:
        offset = word >> 32
        word = memory.word(header + offset) if offset % HEADER == 0 and offset < end - header - HEADER else None
    if word is None:
        return None
    header += offset
    chunk, one = header + HEADER, unpack(word)
    good = one.number == 0 and one.state == ALLOCATED and one.offset == offset // HEADER and one.size <= end - chunk
    if good and key.algorithm != UNKNOWN:
        good = checksum_of(key.algorithm, key.cookie, chunk, word) == one.checksum
    if not good:
        what = f"scudo's header at {header:#x} of the large block {chunk:#x} was overwritten: the block counts as in use"
        problems.append(Problem(header, what, damaged=Range(header, header + 8)))
    return Large(Range(start, end), header, chunk, end - chunk - one.size if good else end - chunk)


def find_kept(memory: Memory, end: int, found: Optional[LargeList], used: Sequence[Large]) -> Iterator[Large]:
    """Yield the freed large blocks whose mappings MapAllocatorCache keeps. An entry has the range
    of the mapping, and the address of the block in it, which is the third or the fifth word."""
    if found is None:
        return
    page, words = memory.target.arch.page, memory.words(end, (found.address - end) // 8) or ()
    writable = merge_ranges(Range(one.start, one.end) for one in memory.target.regions() if one.writable and one.private and not one.name)
    taken = {one.mapping.start for one in used}
    for at in range(len(words) - 5):
        start, size = words[at : at + 2]
        if not start or start % page or size % page or not 0 < size < LARGEST or start in taken:
            continue
        within = range_at(writable, start)
        block = next((words[at + place] for place in (2, 4) if start <= words[at + place] < start + size - HEADER), 0)
        if block and within is not None and start + size <= within.end:
            taken.add(start)
            yield Large(Range(start, start + size), block, block + HEADER, start + size - block - HEADER)
