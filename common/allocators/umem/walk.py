"""Blocks of slabs and segments, from malloc(), which puts a tag before them, or umem_alloc()."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from findleaks.allocators.base import Problem
from findleaks.allocators.umem.arenas import Segment, Vmem
from findleaks.allocators.umem.caches import tag_of
from findleaks.allocators.umem.engine import TROUBLE, UNREADABLE, loops
from findleaks.allocators.umem.layout import MALLOC_MAGIC, MEMALIGN_MAGIC, OVERSIZE_MAGIC, SECOND_MAGIC, SEG_ALLOC, TAG, WRAP
from findleaks.allocators.umem.view import UmemView
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.errors import Interrupted
from findleaks.target.base import Piece


class Large(NamedTuple):
    """A segment that was handed out, or that is free in an arena whose segments are handed out."""

    arena: Vmem
    segment: Segment
    start: int  # of the block
    size: int
    state: State


def large_blocks(engine: Engine, pieces: Sequence[Piece], arena: Vmem, found: Sequence[Segment], word: int) -> list[Large]:
    records, _ = engine.gather(pieces, [segment.start for segment in found], 2 * TAG)
    tags = engine.arch.words32(records).tolist()
    blocks = []
    for number, segment in enumerate(found):
        start, size = segment.start, segment.end - segment.start
        state = State.IN_USE if segment.kind == SEG_ALLOC else State.FREE
        skip, stated = _large_tag(tags[4 * number : 4 * number + 4], word) if state == State.IN_USE else (0, size)
        if 0 < skip < size == stated:
            start, size = start + skip, size - skip
        blocks.append(Large(arena, segment, start, size, state))
    return blocks


def _large_tag(tag: Sequence[int], word: int) -> tuple[int, int]:
    """(bytes of tags, size that they state, tags included); (0, 0) where there is no tag."""
    high, first, low, second = tag
    outer, inner = (high + first) % WRAP, (low + second) % WRAP
    if word == 4:
        return (TAG, high) if outer in (MALLOC_MAGIC, MEMALIGN_MAGIC) else (0, 0)
    if inner == SECOND_MAGIC:
        return 2 * TAG, low
    if (outer, inner) in ((MALLOC_MAGIC, OVERSIZE_MAGIC), (MEMALIGN_MAGIC, MEMALIGN_MAGIC)):
        return 2 * TAG, high << 32 | low
    return 0, 0


CHUNKS_AT_ONCE = 1 << 20  # chunks that are read between two looks at Ctrl-C


def append_slabs(umem: UmemView, blocks: Blocks, first: int, last: int) -> None:
    """Append all chunks of the program's slabs [first, last)."""
    at = first
    while at < last:
        if umem.target.interrupted():
            raise Interrupted
        read = loops(umem.engine).read_buffers(umem.engine, blocks, umem.pieces, umem.slabs.read, at, last, CHUNKS_AT_ONCE)
        at = read.next
        for place in range(0, len(read.troubles), TROUBLE):
            umem.problems.append(_problem(umem, *read.troubles[place : place + TROUBLE]))


def _problem(umem: UmemView, code: int, number: int, chunk: int, size: int, status: int) -> Problem:
    slab = umem.slabs.slab(number)
    cache = slab.cache
    if code == UNREADABLE:
        return Problem(slab.base, f"libumem: slab {slab.address:#x} of {cache.name} cannot be read: sizes are those of its class")
    block = slab.base + chunk * cache.chunksize + tag_of(cache, umem.memory.size)
    what = f"libumem: malloc's tag before {block:#x} ({cache.name}) is damaged: {size:#x}, {status:#x}"
    return Problem(block - TAG, what)
