"""Contract of the engine's calls for libumem's slabs, their free lists and magazines. Structures
are those of umem_impl.h and malloc.c (OpenSolaris usr/src/lib/libumem/common), for any word size.
Callers give cache fields their meaning, and put problems, which are codes here, in words."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

from findleaks.engine.contract import Blocks, Engine
from findleaks.target.base import Piece, Range

CACHE = 11
"""Words of a cache in the calls' table:
address; address of its null slab, which begins and ends its list; first slab; chunksize; slabsize
bufctl: offset in a free buffer of the link to the next (HASHED: the link is in a bufctl, whose
  second word names the buffer)
flags, see below; bufsize
tag: bytes that malloc() puts before its blocks, 0, 8 or 16
least: the largest request that goes to the class below
buftag: offset of the redzone behind a buffer, which has the requested size, or 0"""

HASHED, OWN = 1, 2  # flags: it has a hash table; its buffers are not blocks of the program

SLAB = 7
"""Words of a slab: address; base, its first buffer's address; number of its cache; chunks; refcnt;
prev; number of its first chunk in `states`."""

USER = 3  # words of a slab of the program's buffers: base; end; number of its slab
SUMS = 6  # words of a cache's sums: blocks and usable bytes in use, cached, free

TROUBLE = 5
"""Words of a damaged buffer: a code; its slab's number; its own; with DAMAGED malloc's tag."""

MAX_SLABS = 1 << 26
MAX_TAGGED = 1 << 18  # bytes of the largest size class, at most, so also of a size in a tag
ENCODED = 251  # a redzone has the requested size times this, plus 1 (UMEM_SIZE_ENCODE)

# What is wrong with a list or a slab; with a buffer in a magazine; with the buffers of a slab.
# umem_slabs.c and umem_buffers.c have the same numbers.
LIST, CORRUPT, FREE_LIST, NO_BUFFER, OUTSIDE, OVERLAPS = range(1, 7)

NOT_MINE, IN_MAGAZINE, ON_LIST = range(1, 4)
UNREADABLE, DAMAGED = range(1, 3)


class SlabWrong(NamedTuple):
    """What is wrong with a list or a slab, by code:
    LIST: the list of slabs of `cache` is corrupt; `why` it ended early, or ""
    CORRUPT: the slab of `cache` at `value` is corrupt
    FREE_LIST: the free list of `slab` is corrupt; `why`
    NO_BUFFER: the free list of `slab` has `value`, which is no buffer of it
    OUTSIDE: `slab` is outside the regions
    OVERLAPS: `slab` overlaps slab number `value`"""

    code: int
    cache: int
    slab: int
    value: int
    why: str


class SlabRead(NamedTuple):
    """The slabs of all caches in the order of their lists, each cache's up to ends[number].
    `states`: of each chunk; `users`: the program's slabs by base, disjoint; `sums`: of the blocks
    read so far."""

    caches: array[int]
    records: array[int]
    ends: array[int]
    states: bytearray
    users: array[int]
    wrong: list[SlabWrong]
    sums: array[int]


class BufferRead(NamedTuple):
    """Damaged buffers, words of TROUBLE each, and the index in `users` to go on at."""

    troubles: array[int]
    next: int


class Loops(Protocol):
    """The functions of engine_native.py or engine_reference.py."""

    def read_slabs(self, engine: Any, pieces: Sequence[Piece], caches: array[int], regions: Sequence[Range]) -> SlabRead:
        """Read the slabs of libumem's caches (CACHE words each) and their free lists. The program's
        slabs must each lie in one of `regions`, which are sorted and disjoint. Needs 0 < chunksize
        <= slabsize, and for the program's caches multiples of 8 and tag <= bufsize <= chunksize."""
        ...

    def mark_cached(self, engine: Any, slabs: SlabRead, cache: int, buffers: Sequence[int]) -> list[tuple[int, int]]:
        """Make these buffers, in magazines of cache number `cache`, CACHED in `slabs`; a code and
        the buffer's index for those that cannot be."""
        ...

    def read_buffers(
        self, engine: Any, blocks: Blocks, pieces: Sequence[Piece], slabs: SlabRead, first: int, last: int, enough: int
    ) -> BufferRead:
        """Append the blocks of the program's slabs users[first:last]; stops, after one slab at
        least, at `enough` chunks. Adds to the sums of `slabs`, so call it once for each slab.
        Raises ValueError where the last of `blocks` is not below them."""
        ...


def loops(engine: Engine) -> Loops:
    name = "engine_native" if engine.name == "native" else "engine_reference"
    return cast(Loops, import_module(f"findleaks.allocators.umem.{name}"))
