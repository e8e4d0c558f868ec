"""Blocks of slabs and segments: what malloc() or umem_alloc() returned, behind the tag that malloc() puts before it."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.umem.arenas import Segment, Vmem
from findleaks.allocators.umem.caches import Slab, UmemCache
from findleaks.allocators.umem.layout import (
    BUFTAG,
    FREED_STAT,
    MALLOC_MAGIC,
    MEMALIGN_MAGIC,
    OVERSIZE_MAGIC,
    SECOND_ALIGN,
    SECOND_MAGIC,
    SEG_ALLOC,
)
from findleaks.errors import Interrupted, UnreadableMemory
from findleaks.graph.base import Blocks, Engine, State
from findleaks.target.base import Piece

TAG = 8
"""Bytes of malloc_data_t: size and status, four bytes each."""

WRAP = 1 << 32
MOST_CLASS = 1 << 18
_IDLE = bytes((0,)) + bytes((1,)) * 255
"""State to 1 where a block is not in use."""


@dataclass(frozen=True)
class Large:
    """A segment that was handed out, or lies free in an arena whose segments are."""

    arena: Vmem
    segment: Segment
    start: int  # of the block
    size: int
    state: State


def tag_of(cache: UmemCache, word: int) -> int:
    """Bytes before what malloc() returns in buffers of a cache "umem_alloc_N"; 0 in any other cache, which malloc() does not use."""
    if not cache.name.startswith("umem_alloc_"):
        return 0
    return 2 * TAG if word == 8 and cache.bufsize > SECOND_ALIGN else TAG


def large_blocks(engine: Engine, pieces: Sequence[Piece], arena: Vmem, found: Sequence[Segment], word: int) -> list[Large]:
    """The blocks of an arena's segments."""
    records, _ = engine.gather(pieces, [segment.start for segment in found], 2 * TAG)
    tags = memoryview(records).cast("I").tolist()
    blocks = []
    for number, segment in enumerate(found):
        start, size = segment.start, segment.end - segment.start
        state = State.IN_USE if segment.kind == SEG_ALLOC else State.FREE
        skip, told = _large_tag(tags[4 * number : 4 * number + 4], word) if state == State.IN_USE else (0, size)
        if skip and told == size:
            start, size = start + skip, size - skip
        blocks.append(Large(arena, segment, start, size, state))
    return blocks


def _large_tag(tag: Sequence[int], word: int) -> tuple[int, int]:
    """(bytes of tags, size that they say, tags included); (0, 0) where there is no tag."""
    high, first, low, second = tag
    outer, inner = (high + first) % WRAP, (low + second) % WRAP
    if word == 4:
        return (TAG, high) if outer in (MALLOC_MAGIC, MEMALIGN_MAGIC) else (0, 0)
    if inner == SECOND_MAGIC:
        return 2 * TAG, low
    if (outer, inner) in ((MALLOC_MAGIC, OVERSIZE_MAGIC), (MEMALIGN_MAGIC, MEMALIGN_MAGIC)):
        return 2 * TAG, high << 32 | low
    return 0, 0


BATCH = 1 << 16
"""Blocks appended at a time: a call costs microseconds, and a slab may have few blocks."""


class SlabWalk:
    """Appends the blocks of slabs; what is wrong goes to `problems`. `bytes` sums up usable bytes by cache (its address) and state."""

    def __init__(self, memory: Memory, problems: list[Problem], classes: Sequence[int], pieces: Sequence[Piece]) -> None:
        self.memory = memory
        self.pieces = pieces
        self._ends = [piece.address + len(piece.data) for piece in pieces]
        self._piece = Piece(0, memoryview(b""))  # the last slab's
        self.problems = problems
        self.classes = classes
        self.bytes: dict[int, list[int]] = {}
        self._tables: dict[int, dict[int, int]] = {}

    def append(self, blocks: Blocks, slabs: Sequence[Slab]) -> None:
        """All chunks of these ascending slabs, in order."""
        starts, sizes, states = array("Q"), array("Q"), bytearray()
        for slab in slabs:
            where, usable, idle = self.layout(slab)
            starts.extend(where)
            sizes.extend(usable)
            states += slab.states
            self._count(slab, usable, idle)
            if len(states) >= BATCH:
                if self.memory.target.interrupted():
                    raise Interrupted
                blocks.append(starts, sizes, states)
                starts, sizes, states = array("Q"), array("Q"), bytearray()
        blocks.append(starts, sizes, states)

    def _count(self, slab: Slab, usable: Sequence[int], idle: int) -> None:
        sums = self.bytes.get(slab.cache.address)
        if sums is None:
            sums = self.bytes[slab.cache.address] = [0, 0, 0]
        free = slab.states.count(State.FREE) * idle
        cached = slab.states.count(State.CACHED) * idle
        sums[State.IN_USE] += sum(usable) - free - cached
        sums[State.FREE] += free
        sums[State.CACHED] += cached

    def least(self, cache: UmemCache) -> int:
        """The largest request, tags included, that goes to the class below."""
        at = bisect_right(self.classes, cache.bufsize - 1) - 1
        return self.classes[at] if at >= 0 else 0

    def _table(self, cache: UmemCache, tag: int) -> dict[int, int]:
        """What malloc's tag may be in this class, as 64 bits, and the usable size that it says."""
        table = self._tables.get(cache.address)
        if table is None:
            magic = SECOND_MAGIC if tag > TAG else MALLOC_MAGIC
            told = range(max(self.least(cache) + 1, tag), min(cache.bufsize, MOST_CLASS) + 1)
            table = {self._tag(size, (magic - size) % WRAP): size - tag for size in told}
            self._tables[cache.address] = table
        return table

    def _tag(self, size: int, stat: int) -> int:
        return size | stat << 32 if sys.byteorder == "little" else size << 32 | stat

    def layout(self, slab: Slab) -> tuple[Sequence[int], Sequence[int], int]:
        """Addresses and usable sizes of a slab's blocks, and the size of those that are not in use."""
        cache, count = slab.cache, slab.chunks
        tag = tag_of(cache, self.memory.size)
        starts = range(slab.base + tag, slab.base + tag + count * cache.chunksize, cache.chunksize)
        default = cache.bufsize - tag
        if not tag:
            return starts, array("Q", (default,)) * count, default
        try:
            data = self._data(slab.base, count * cache.chunksize)
        except UnreadableMemory:
            what = f"libumem: slab {slab.address:#x} of {cache.name} cannot be read: sizes are those of its class"
            self.problems.append(Problem(slab.base, what))
            return starts, array("Q", (default,)) * count, default
        known = self._table(cache, tag).get
        tags = data.cast("Q")[(tag - TAG) // 8 :: cache.chunksize // 8].tolist()
        sizes = list(map(known, tags, repeat(-1)))
        if -1 not in sizes and not any(slab.states):
            return starts, sizes, default
        if bytes(map((-1).__eq__, sizes)) == slab.states.translate(_IDLE):
            return starts, list(map(known, tags, repeat(default))), default
        return self._odd(slab, tag, sizes, data.cast("I"))

    def _data(self, start: int, size: int) -> memoryview:
        """The bytes, without a copy where they lie in one piece; UnreadableMemory where they are not there."""
        piece = self._piece
        if not piece.address <= start or start + size > piece.address + len(piece.data):
            at = bisect_right(self._ends, start)
            piece = self.pieces[at] if at < len(self.pieces) else piece
            if not piece.address <= start or start + size > piece.address + len(piece.data):
                return memoryview(self.memory.target.read(start, size))
            self._piece = piece
        return piece.data[start - piece.address : start - piece.address + size]

    def _odd(self, slab: Slab, tag: int, sizes: list[int], data: memoryview) -> tuple[Sequence[int], Sequence[int], int]:
        """The same where not exactly the buffers in use have a tag (-1 in `sizes`: it has none)."""
        cache, states = slab.cache, slab.states
        odd = [i for i, size in enumerate(sizes) if size < 0 and not states[i]]
        idle = cache.bufsize - tag
        if odd and len(odd) == states.count(State.IN_USE) and not any(self._damaged(cache, i, data, tag) for i in odd):
            tag, idle = 0, cache.bufsize  # none has: the program calls umem_alloc() itself
        where = [slab.base + i * cache.chunksize + tag for i in range(slab.chunks)]
        sizes = [idle if state or size < 0 else size for size, state in zip(sizes, states)]
        step = cache.chunksize // 4
        for i in odd:
            start, size = self._untagged(slab, i, data[i * step : (i + 1) * step], tag_of(cache, self.memory.size))
            if not i or start >= where[i - 1] + max(sizes[i - 1], 1):
                where[i], sizes[i] = start, size
        return where, sizes, idle

    def _damaged(self, cache: UmemCache, index: int, data: memoryview, tag: int) -> int:
        """The size that one half of a damaged tag still says (an impossible one is 0)."""
        at = index * cache.chunksize // 4 + (tag - TAG) // 4
        told, stat = data[at], data[at + 1]
        magic = SECOND_MAGIC if tag > TAG else MALLOC_MAGIC
        for size in (told, (magic - stat) % WRAP):
            if max(self.least(cache), tag - 1) < size <= cache.bufsize and stat != FREED_STAT:
                return int(size)
        return 0

    def _untagged(self, slab: Slab, index: int, chunk: memoryview, tag: int) -> tuple[int, int]:
        """A buffer in use without malloc's tag: umem_alloc() gave it out itself, or its tag is damaged."""
        cache = slab.cache
        buffer = slab.base + index * cache.chunksize
        if tag > TAG and (chunk[0] + chunk[1]) % WRAP == MALLOC_MAGIC and TAG <= chunk[0] <= SECOND_ALIGN:
            return buffer + TAG, chunk[0] - TAG
        size = self._damaged(cache, 0, chunk, tag)
        if size:
            at = (tag - TAG) // 4
            what = f"libumem: malloc's tag before {buffer + tag:#x} ({cache.name}) is damaged: {chunk[at]:#x}, {chunk[at + 1]:#x}"
            self.problems.append(Problem(buffer + tag - TAG, what))
            return buffer + tag, size - tag
        return buffer, requested(cache, chunk)


def requested(cache: UmemCache, chunk: memoryview) -> int:
    """What was asked of umem_alloc(): in a debugging cache the buffer's tag tells; else the class."""
    if cache.flags & BUFTAG and cache.buftag // 4 + 1 < len(chunk):
        encoded = chunk[cache.buftag // 4 + 1]
        if encoded % 251 == 1 and 0 < encoded // 251 <= cache.bufsize:
            return encoded // 251
    return cache.bufsize
