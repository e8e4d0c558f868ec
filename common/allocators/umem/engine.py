"""The contract of the engine's calls for slab allocators with free lists and magazines: libumem's slabs and their buffers.

The structures are those of umem_impl.h and malloc.c (OpenSolaris usr/src/lib/libumem/common), of any word size; what a cache's fields
mean is the caller's business. Codes say what is wrong; words for users are the caller's, too.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

from findleaks.engine.contract import Blocks, Engine
from findleaks.target.base import Piece, Range

CACHE = 11
"""Words of a cache: address; address of its null slab, which begins and ends its list; first slab; chunksize; slabsize; bufctl, where in a
free buffer the link to the next stands (HASHED: a bufctl's second word names the buffer); flags below; bufsize; tag, bytes that malloc()
puts before its blocks, 0, 8 or 16; least, the largest request that goes to the class below; buftag, where behind a buffer the redzone
stands that tells what was asked for, or 0."""

HASHED, OWN = 1, 2
"""Flags of a cache: it has a hash table; its buffers are no blocks of the program."""

SLAB = 7
"""Words of a slab: address; base, of its first buffer; number of its cache; chunks; refcnt; prev; number of its first chunk in `states`."""

USER = 3
"""Words of a slab of the program's buffers: base; end; number of its slab."""

SUMS = 6
"""Words of sums, by cache: blocks and usable bytes in use, cached, free."""

TROUBLE = 5
"""Words of a buffer that is not as it must be: a code below, the number of its slab, its own; of DAMAGED both words of malloc's tag."""

MOST_SLABS = 1 << 26
MOST_TAGGED = 1 << 18
"""No size class is larger, so no size in a tag."""

MALLOC_MAGIC, SECOND_MAGIC = 0x3A10C000, 0x16BA7000
"""What the two words of malloc's tag, size and status, add up to modulo 2^32; the latter where the tag has 16 bytes (malloc.c)."""

FREED = 0xDEADBEEF
"""The status that free() writes."""

ENCODED = 251
"""In a redzone stands the size that was asked for, times this, and 1 (UMEM_SIZE_ENCODE)."""

# What is wrong with a list or a slab; umem_slabs.c has the same numbers.
LIST, CORRUPT, FREE_LIST, NO_BUFFER, OUTSIDE, OVERLAPS = range(1, 7)

# What is wrong with a buffer in a magazine, and with the buffers of a slab; umem_slabs.c and umem_buffers.c have the same numbers.
NOT_MINE, IN_MAGAZINE, ON_LIST = range(1, 4)
UNREADABLE, DAMAGED = range(1, 3)


class SlabWrong(NamedTuple):
    """A code: LIST of `cache` (`why` it ended early, or ""), CORRUPT slab of it at `value`, FREE_LIST of `slab` and `why`, NO_BUFFER of
    `slab`, for its free list has `value`, `slab` OUTSIDE the regions, and OVERLAPS slab number `value`."""

    code: int
    cache: int
    slab: int
    value: int
    why: str


class SlabRead(NamedTuple):
    """The slabs of all caches in the order of their lists, those of a cache up to ends[number] (from the end of the one before); a state a
    chunk; the program's by base, disjoint; sums of what was read of them."""

    caches: array[int]
    records: array[int]
    ends: array[int]
    states: bytearray
    users: array[int]
    wrong: list[SlabWrong]
    sums: array[int]


class BufferRead(NamedTuple):
    """What is wrong with buffers whose blocks were appended, and the number of the next of `users` to read."""

    troubles: array[int]
    next: int


def read_slabs(engine: Engine, pieces: Sequence[Piece], caches: array[int], regions: Sequence[Range]) -> SlabRead:
    """The slabs of libumem's caches (`CACHE` words each) and what is on their free lists; the program's must lie whole in one of
    `regions`, which are sorted and disjoint. Chunk sizes and tags must be possible: 0 < chunksize <= slabsize, and of the program's
    caches multiples of 8, tag <= bufsize <= chunksize. See engine.py."""
    return _loops(engine).read_slabs(engine, pieces, caches, regions)


def mark_cached(engine: Engine, slabs: SlabRead, cache: int, buffers: Sequence[int]) -> list[tuple[int, int]]:
    """Make these buffers of magazines of a cache (its number) CACHED in `slabs`; a code and the buffer's number where none can be."""
    return _loops(engine).mark_cached(engine, slabs, cache, buffers)


def read_buffers(
    engine: Engine, blocks: Blocks, pieces: Sequence[Piece], slabs: SlabRead, first: int, last: int, enough: int
) -> BufferRead:
    """Append the blocks of the program's slabs [first, last), by their number in `users`: of as many slabs, one at least, as have
    `enough` chunks. The sums of `slabs` then have them, too: call it once for each. ValueError where the last of `blocks` is not
    below them."""
    return _loops(engine).read_buffers(engine, blocks, pieces, slabs, first, last, enough)


class _Loops(Protocol):
    """What umem/engine_kernel.py and its twin, engine_python.py, both have."""

    def read_slabs(self, engine: Any, pieces: Sequence[Piece], caches: array[int], regions: Sequence[Range]) -> SlabRead: ...

    def mark_cached(self, engine: Any, slabs: SlabRead, cache: int, buffers: Sequence[int]) -> list[tuple[int, int]]: ...

    def read_buffers(
        self, engine: Any, blocks: Blocks, pieces: Sequence[Piece], slabs: SlabRead, first: int, last: int, enough: int
    ) -> BufferRead: ...


def _loops(engine: Engine) -> _Loops:
    """The loops that belong to the engine."""
    name = "engine_kernel" if engine.name == "kernel" else "engine_python"
    return cast(_Loops, import_module(f"findleaks.allocators.umem.{name}"))
