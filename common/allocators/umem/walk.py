"""Blocks of slabs and segments: what malloc() or umem_alloc() returned, behind the tag that malloc() puts before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add

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
from findleaks.errors import UnreadableMemory
from findleaks.graph.base import Blocks, Engine, State
from findleaks.target.base import Piece

TAG = 8
"""Bytes of malloc_data_t: size and status, four bytes each."""

WRAP = 1 << 32


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


class SlabWalk:
    """Appends the blocks of slabs; what is wrong goes to `problems`."""

    def __init__(self, memory: Memory, problems: list[Problem], sizes: Callable[[UmemCache], int]) -> None:
        self.memory = memory
        self.problems = problems
        self.least = sizes
        """The largest request, tags included, that goes to the cache below: what a cache's buffers are asked for is more."""

    def append(self, blocks: Blocks, slab: Slab) -> None:
        """All chunks of a slab, in order."""
        starts, sizes = self.layout(slab)
        blocks.append(starts, sizes, slab.states)

    def layout(self, slab: Slab) -> tuple[Sequence[int], Sequence[int]]:
        """Addresses and usable sizes of a slab's blocks."""
        cache, count = slab.cache, slab.chunks
        tag = tag_of(cache, self.memory.size)
        starts: Sequence[int] = range(slab.base, slab.base + count * cache.chunksize, cache.chunksize)
        if not tag:
            return starts, [cache.bufsize] * count
        try:
            data = memoryview(self.memory.target.read(slab.base, count * cache.chunksize)).cast("I")
        except UnreadableMemory:
            self.problems.append(
                Problem(slab.base, f"libumem: slab {slab.address:#x} of {cache.name} cannot be read: sizes are those of its class")
            )
            return range(starts[0] + tag, starts[-1] + tag + 1, cache.chunksize), [cache.bufsize - tag] * count
        step, at = cache.chunksize // 4, (tag - TAG) // 4
        told = data[at::step].tolist()
        sums = list(map(add, told, data[at + 1 :: step].tolist()))
        magic = SECOND_MAGIC if tag > TAG else MALLOC_MAGIC
        good = (magic, magic + WRAP)
        if set(sums) <= set(good) and max(told) <= cache.bufsize and min(told) >= tag:
            return range(starts[0] + tag, starts[-1] + tag + 1, cache.chunksize), [size - tag for size in told]
        default = cache.bufsize - tag
        sizes = [size - tag if total in good and tag <= size <= cache.bufsize else default for size, total in zip(told, sums)]
        odd = [i for i, total in enumerate(sums) if not slab.states[i] and not (total in good and tag <= told[i] <= cache.bufsize)]
        if not odd:
            return range(starts[0] + tag, starts[-1] + tag + 1, cache.chunksize), sizes
        where = [start + tag for start in starts]
        direct = len(odd) == slab.states.count(State.IN_USE)  # none has a tag: the program calls umem_alloc() itself
        if direct:
            where, sizes = list(starts), [cache.bufsize] * count
        for i in odd:
            start, size = self._untagged(slab, i, data[i * step : (i + 1) * step], tag, told[i], sums[i] - told[i])
            if i and start < where[i - 1] + max(sizes[i - 1], 1):
                continue
            where[i], sizes[i] = start, size
        return where, sizes

    def _untagged(self, slab: Slab, index: int, chunk: memoryview, tag: int, told: int, stat: int) -> tuple[int, int]:
        """A buffer in use without malloc's tag: umem_alloc() gave it out itself, or its tag is damaged."""
        cache = slab.cache
        buffer = slab.base + index * cache.chunksize
        if tag > TAG and (chunk[0] + chunk[1]) % WRAP == MALLOC_MAGIC and TAG <= chunk[0] <= SECOND_ALIGN:
            return buffer + TAG, chunk[0] - TAG
        magic = SECOND_MAGIC if tag > TAG else MALLOC_MAGIC
        for size in (told, (magic - stat) % WRAP):
            if self.least(cache) < size <= cache.bufsize and size >= tag and stat != FREED_STAT:
                what = f"libumem: malloc's tag before {buffer + tag:#x} ({cache.name}) is damaged: size {told:#x}, status {stat:#x}"
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
