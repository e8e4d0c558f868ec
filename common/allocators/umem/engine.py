"""Contract of the engine's calls for libumem's slabs, their free lists and magazines.

The structures are those of umem_impl.h and malloc.c (OpenSolaris usr/src/lib/libumem/common), for
any word size. What a cache's fields mean is the caller's business. Problems are reported as codes;
the caller puts them in words for users.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

from findleaks.engine.contract import Blocks, Engine
from findleaks.target.base import Piece, Range

CACHE = 11
"""Words of a cache in the table that the calls take:

- address;
- address of its null slab, which begins and ends its list;
- first slab;
- chunksize;
- slabsize;
- bufctl: offset in a free buffer of the link to the next (HASHED: the link is in a bufctl, whose
  second word names the buffer);
- flags, see below;
- bufsize;
- tag: bytes that malloc() puts before its blocks, 0, 8 or 16;
- least: the largest request that goes to the class below;
- buftag: offset of the redzone behind a buffer, which has the requested size, or 0.
"""

HASHED, OWN = 1, 2
"""Flags of a cache: it has a hash table; its buffers are not blocks of the program."""

SLAB = 7
"""Words of a slab.

Address; base, the address of its first buffer; number of its cache; chunks; refcnt; prev; number of
its first chunk in `states`.
"""

USER = 3
"""Words of a slab of the program's buffers: base; end; number of its slab."""

SUMS = 6
"""Words of a cache's sums: blocks and usable bytes in use, cached, free."""

TROUBLE = 5
"""Words of a damaged buffer.

A code, see below; the number of its slab; its own; with DAMAGED both words of malloc's tag.
"""

MAX_SLABS = 1 << 26
MAX_TAGGED = 1 << 18
"""Bytes of the largest size class, at most, so also of the largest size in a tag."""

ENCODED = 251
"""A redzone has the requested size times this, plus 1 (UMEM_SIZE_ENCODE)."""

# What is wrong with a list or a slab; umem_slabs.c has the same numbers.
LIST, CORRUPT, FREE_LIST, NO_BUFFER, OUTSIDE, OVERLAPS = range(1, 7)

# What is wrong with a buffer in a magazine, and with the buffers of a slab; umem_slabs.c and
# umem_buffers.c have the same numbers.
NOT_MINE, IN_MAGAZINE, ON_LIST = range(1, 4)
UNREADABLE, DAMAGED = range(1, 3)


class SlabWrong(NamedTuple):
    """What is wrong with a list or a slab, by code.

    - LIST: the list of slabs of `cache` is corrupt; `why` it ended early, or "".
    - CORRUPT: the slab of `cache` at `value` is corrupt.
    - FREE_LIST: the free list of `slab` is corrupt; `why`.
    - NO_BUFFER: the free list of `slab` has `value`, which is no buffer of it.
    - OUTSIDE: `slab` is outside the regions.
    - OVERLAPS: `slab` overlaps slab number `value`.
    """

    code: int
    cache: int
    slab: int
    value: int
    why: str


class SlabRead(NamedTuple):
    """The slabs of all caches, in the order of their lists.

    Those of a cache end at ends[number] and begin at the end of the cache before. `states` has the
    state of each chunk. `users` are the program's slabs by base, disjoint. `sums` are those of the
    blocks that have been read.
    """

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
    """The functions of engine_kernel.py and of its twin, engine_python.py."""

    def read_slabs(self, engine: Any, pieces: Sequence[Piece], caches: array[int], regions: Sequence[Range]) -> SlabRead:
        """Read the slabs of libumem's caches (`CACHE` words each) and their free lists.

        The program's slabs must each lie in one of `regions`, which are sorted and disjoint. Chunk
        sizes and tags must be possible: 0 < chunksize <= slabsize, and for the program's caches
        multiples of 8 and tag <= bufsize <= chunksize.
        """
        ...

    def mark_cached(self, engine: Any, slabs: SlabRead, cache: int, buffers: Sequence[int]) -> list[tuple[int, int]]:
        """Make these buffers, which are in magazines of one cache (its number), CACHED in `slabs`.

        Returns a code and the buffer's index for those that cannot be.
        """
        ...

    def read_buffers(
        self, engine: Any, blocks: Blocks, pieces: Sequence[Piece], slabs: SlabRead, first: int, last: int, enough: int
    ) -> BufferRead:
        """Append the blocks of the program's slabs [first, last), which are indices in `users`.

        It stops, after one slab at least, at the first with which there are `enough` chunks. The
        blocks are added to the sums of `slabs`, so call it once for each slab. Raises ValueError
        where the last of `blocks` is not below them.
        """
        ...


def loops(engine: Engine) -> Loops:
    """The module that belongs to the engine."""
    name = "engine_kernel" if engine.name == "kernel" else "engine_python"
    return cast(Loops, import_module(f"findleaks.allocators.umem.{name}"))
