"""Read the chunks of size classes, and the large chunks, by their headers."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.asan.engine import DAMAGED, Chunks, examine_chunk, read_chunks
from findleaks.allocators.asan.layout import ALLOCATED, HEADER, LARGE_HEADER, MAGIC, QUARANTINED, UNUSED, state_of, used_size
from findleaks.allocators.base import MAX_PROBLEMS, Problem
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.errors import Interrupted
from findleaks.target.base import Range

# bytes of chunks that are read at once, which takes about 1 ms (100 ms in the reference engine)
STEP = 4 << 20

LOWER = 0xFFFFFFFF
_STATES = bytes({UNUSED: State.FREE, QUARANTINED: State.FREE}.get(state, State.IN_USE) for state in range(256))


class Region(NamedTuple):
    """The addresses of one size class.

    Chunks of `chunk` bytes extend from `start` to `carved`. Memory is mapped from `start` up to
    `mapped`. The mapping of the free array begins at `free_array`."""

    number: int
    start: int
    chunk: int
    carved: int
    mapped: int
    free_array: Range


class Large(NamedTuple):
    """The mapping [start, end) of a large chunk."""

    start: int
    end: int


class Damage:
    """Damaged headers. The first ones are reported one by one, the others are counted."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        self.count = 0
        self.last = 0

    def add(self, memory: Memory, header: int, capacity: int) -> None:
        """Add the header of a chunk that has space for a block of `capacity` bytes."""
        self.count += 1
        self.last = header
        if self.count <= MAX_PROBLEMS:
            first, second = memory.words(header, 2) or (0, 0)
            if first == MAGIC:
                what = f"refers to a chunk header at {second:#x}, which is outside the chunk"
            elif state_of(first) not in (ALLOCATED, QUARANTINED):
                what = f"has the state {state_of(first)}, which does not exist"
            else:
                what = f"has a size of {used_size(first):,} bytes, but the chunk has a capacity of {capacity:,}"
            words = f"AddressSanitizer's header at {header:#x} {what}: it was overwritten"
            self.problems.append(Problem(header, words, damaged=Range(header, header + HEADER)))

    def end(self) -> None:
        """Report the number of further damaged headers."""
        if self.count > MAX_PROBLEMS:
            self.problems.append(Problem(self.last, f"and {self.count - MAX_PROBLEMS:,} more such headers"))


def chunks(memory: Memory, engine: Engine, region: Region) -> Iterator[Chunks]:
    """Yield the readable chunks of a class, ascending. Raises Interrupted."""
    size = region.chunk
    step = max(STEP // size, 1) * size
    for low in range(region.start, region.carved, step):
        if memory.target.is_interrupted():
            raise Interrupted
        for piece in memory.read_whole(low, min(low + step, region.carved), size):
            yield read_chunks(engine, piece, size)


def large(memory: Memory, headers: Sequence[int], problems: list[Problem]) -> list[Large]:
    """Return the mappings of large chunks according to their headers, ascending and disjoint."""
    found: list[Large] = []
    page = memory.target.arch.page
    for address in sorted(set(headers)):
        words = memory.words(address, LARGE_HEADER)
        start, size = words[:2] if words else (0, 0)
        good = words is not None and start == address and start % page == size % page == 0 and size > page
        if not good or (found and start < found[-1].end):
            problems.append(
                Problem(address, f"AddressSanitizer's header of a large chunk at {address:#x} is damaged: its block is not read")
            )
        else:
            found.append(Large(start, start + size))
    return found


def large_chunk(memory: Memory, one: Large) -> Optional[Chunks]:
    """Read the chunk in a mapping; None if it is unreadable."""
    header = begin = one.start + memory.target.arch.page
    words, good = memory.words(begin, 3), True
    if words is not None and words[0] == MAGIC:
        good = words[1] % HEADER == 0 and begin < words[1] < one.end - HEADER
        header = words[1] if good else begin
        words = memory.words(header, 3)
    if words is None:
        return None
    size, state = examine_chunk(words[0], one.end - header - HEADER, good)
    freed = words[2] & LOWER if state == QUARANTINED and size >= 8 else 0
    columns = array("Q", [header + HEADER]), array("Q", [size]), bytearray([state]), array("I", [words[1] & LOWER]), array("I", [freed])
    return Chunks(*columns)


def append(memory: Memory, read: Chunks, blocks: Blocks, damage: Damage) -> int:
    """Append chunks in use, and all other chunks as free blocks. Return the number of chunks in the
    quarantine.

    A chunk with a damaged header counts as in use, so that no reference in it is missed."""
    at = read.states.find(DAMAGED)
    while at >= 0:
        damage.add(memory, read.blocks[at] - HEADER, read.sizes[at])
        at = read.states.find(DAMAGED, at + 1)
    blocks.append(read.blocks, read.sizes, read.states.translate(_STATES))
    return read.states.count(QUARANTINED)


def append_region(memory: Memory, engine: Engine, region: Region, blocks: Blocks, damage: Damage) -> int:
    """Append the chunks of a class. Return the number of chunks in the quarantine."""
    return sum(append(memory, read, blocks, damage) for read in chunks(memory, engine, region))


def append_large(memory: Memory, one: Large, blocks: Blocks, damage: Damage) -> int:
    """Append a large chunk, unless a thread is allocating or freeing it. Return 1 if it is in the
    quarantine, otherwise 0."""
    read = large_chunk(memory, one)
    return append(memory, read, blocks, damage) if read is not None and read.states[0] != UNUSED else 0
