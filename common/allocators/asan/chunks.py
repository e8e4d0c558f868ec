"""The chunks of a size class, and the large ones, by their headers."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.asan.layout import ALLOCATED, HEADER, LARGE_HEADER, MAGIC, PAGE, QUARANTINED, UNUSED, state_of, used_size
from findleaks.allocators.base import MAX_PROBLEMS, Problem
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.errors import Interrupted
from findleaks.target.base import Range

STEP = 4 << 20  # bytes of chunks that are read at once: some 100 ms for the smallest

_STATES = {ALLOCATED: State.IN_USE, QUARANTINED: State.FREE, UNUSED: State.FREE}


class Region(NamedTuple):
    """The addresses of one size class: chunks of `chunk` bytes from `start` to `carved`; memory is
    mapped to `mapped`, and for the free array at `free_array`."""

    number: int
    start: int
    chunk: int
    carved: int
    mapped: int
    free_array: Range


class Large(NamedTuple):
    """A large chunk's mapping [start, end)."""

    start: int
    end: int


class Chunk(NamedTuple):
    """A chunk: its header's address, the header's two words, the block's first word, the chunk's
    end. Where the chunk points to a header outside, the words are those that it begins with."""

    header: int
    first: int
    second: int
    block: int
    end: int


class Damage:
    """Damaged headers: the first ones as problems, the others counted."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        self.count = 0
        self.last = 0

    def add(self, address: int, what: str) -> None:
        self.count += 1
        self.last = address
        if self.count <= MAX_PROBLEMS:
            words = f"AddressSanitizer's header at {address:#x} {what}: it was overwritten"
            self.problems.append(Problem(address, words, damaged=Range(address, address + HEADER)))

    def end(self) -> None:
        """Say how many more there are."""
        if self.count > MAX_PROBLEMS:
            self.problems.append(Problem(self.last, f"and {self.count - MAX_PROBLEMS:,} more such headers"))


def chunks(memory: Memory, region: Region) -> Iterator[Chunk]:
    """The chunks of a class that can be read, ascending. Raises Interrupted."""
    size = region.chunk
    step, stride = max(STEP // size, 1) * size, size // 8
    for low in range(region.start, region.carved, step):
        if memory.target.interrupted():
            raise Interrupted
        for start, words in _readable(memory, low, min(low + step, region.carved), size):
            at = start
            for first, second, third in zip(words[::stride].tolist(), words[1::stride].tolist(), words[2::stride].tolist()):
                if first != MAGIC:
                    yield Chunk(at, first, second, third, at + size)
                elif second % 16 == 0 and at < second < at + size - HEADER:
                    place = (second - start) // 8
                    yield Chunk(second, words[place], words[place + 1], words[place + 2], at + size)
                else:
                    yield Chunk(at, MAGIC, second, third, at + size)
                at += size


def _readable(memory: Memory, low: int, high: int, size: int) -> Iterator[tuple[int, memoryview]]:
    """(address, words) of whole chunks of [low, high), without what cannot be read."""
    whole = memory.read(low, high - low)
    if whole:
        yield low, memoryview(whole).cast("Q")
        return
    for piece in memory.target.pieces(low, high):
        first = low + -(-(piece.address - low) // size) * size
        end = low + (piece.address + len(piece.data) - low) // size * size
        if first < end:
            yield first, memoryview(bytes(piece.data[first - piece.address : end - piece.address])).cast("Q")


def walk(memory: Memory, region: Region, blocks: Blocks, damage: Damage) -> int:
    """Append the chunks of a class: those in use, and the others as free. A damaged header's chunk
    is in use: nothing in it must be missed. Returns how many are in the quarantine."""
    starts, sizes, states, quarantined = array("Q"), array("Q"), bytearray(), 0
    for chunk in chunks(memory, region):
        state = chunk.first & 0xFF
        size, capacity = chunk.first >> 32 | (chunk.first >> 16 & 0xFFFF) << 32, chunk.end - chunk.header - HEADER
        if state == UNUSED:
            size = capacity
        elif not 0 < size <= capacity or state not in _STATES:
            size, state = _damaged(chunk, damage)
        starts.append(chunk.header + HEADER)
        sizes.append(size)
        states.append(_STATES[state])
        quarantined += state == QUARANTINED
    blocks.append(starts, sizes, states)
    return quarantined


def _damaged(chunk: Chunk, damage: Damage) -> tuple[int, int]:
    """Report the header; the size and the state that the chunk is taken to have."""
    capacity = chunk.end - chunk.header - HEADER
    if chunk.first == MAGIC:
        damage.add(chunk.header, f"says that the chunk's is at {chunk.second:#x}, outside the chunk")
    elif state_of(chunk.first) not in _STATES:
        damage.add(chunk.header, f"has the state {state_of(chunk.first)}, which does not exist")
    else:
        damage.add(chunk.header, f"claims {used_size(chunk.first):,} bytes of a chunk with capacity for {capacity:,}")
    return capacity, ALLOCATED


def large(memory: Memory, headers: Sequence[int], problems: list[Problem]) -> list[Large]:
    """The mappings of large chunks by their headers, ascending and disjoint."""
    found: list[Large] = []
    for address in sorted(set(headers)):
        words = memory.words(address, LARGE_HEADER)
        start, size = words[:2] if words else (0, 0)
        good = words is not None and start == address and start % PAGE == size % PAGE == 0 and size > PAGE
        if not good or (found and start < found[-1].end):
            problems.append(
                Problem(address, f"AddressSanitizer's header of a large chunk at {address:#x} is damaged: its block is not seen")
            )
        else:
            found.append(Large(start, start + size))
    return found


def large_chunk(memory: Memory, one: Large) -> Optional[Chunk]:
    """The chunk in a mapping; None where it cannot be read."""
    begin = one.start + PAGE
    words = memory.words(begin, 3)
    if words is not None and words[0] == MAGIC and words[1] % 16 == 0 and begin < words[1] < one.end - HEADER:
        begin = words[1]
        words = memory.words(begin, 3)
    return Chunk(begin, words[0], words[1], words[2], one.end) if words is not None else None


def append_large(memory: Memory, one: Large, blocks: Blocks, damage: Damage) -> int:
    """Append a large chunk's block, unless it is being made or given back. Returns how many are in
    the quarantine: 1, or 0."""
    chunk = large_chunk(memory, one)
    if chunk is None or state_of(chunk.first) == UNUSED:
        return 0
    size, state = used_size(chunk.first), state_of(chunk.first)
    if state not in _STATES or not 0 < size <= chunk.end - chunk.header - HEADER:
        size, state = _damaged(chunk, damage)
    blocks.append([chunk.header + HEADER], [size], [_STATES[state]])
    return int(state == QUARANTINED)
