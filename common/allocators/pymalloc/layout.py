"""Layouts of CPython's small-object allocator. Sizes are in bytes.

Sources: Objects/obmalloc.c (3.9 to 3.11) and Include/internal/pycore_obmalloc.h (3.12 to 3.14) of
CPython 3.9.2, 3.10.13, 3.11.2, 3.12.1, 3.13.5 and 3.14.10.

An arena, described by an arena_object, is divided into 64 pools. A pool is a header and blocks of
one size. The fields of these structures are the same since 2.5. Only the sizes changed: up to 3.9,
arenas have 256 KiB and pools 4 KiB. Since 3.10, if the radix tree of arenas is compiled in (the
default), they have 1 MiB and 16 KiB."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from findleaks.allocators.record import Record
from findleaks.target.arch import Arch

POOLS = 64  # MAX_POOLS_IN_ARENA; one less if the arena is not aligned to the size of a pool

POOL_SIZES = (1 << 14, 1 << 12)  # POOL_SIZE of 3.10 and later, and of 3.9

# INITIAL_ARENA_OBJECTS: the first length of the array of arena_objects, which doubles
SMALLEST_ARENAS = 16

MAX_ARENAS = 1 << 24  # the largest number of elements of the array
LARGEST = 512  # SMALL_REQUEST_THRESHOLD; larger requests go to malloc


@cache
def _sizes(word: int) -> tuple[int, int]:
    """Return the sizes of an arena_object and of a pool_header, whose first field is a count."""
    arena = Record("W address, W pool_address, I nfreepools, I ntotalpools, W freepools, W nextarena, W prevarena", word)
    pool = Record("W count, W freeblock, W nextpool, W prevpool, I arenaindex, I szidx, I nextoffset, I maxnextoffset", word)
    return arena.size, pool.size


class Layout(NamedTuple):
    """Sizes that follow from the size of a word: those of arena_object, pool_header and the
    arrays."""

    word: int
    align: int

    @property
    def classes(self) -> int:
        return LARGEST // self.align

    @property
    def object(self) -> int:
        """The size of an arena_object."""
        return _sizes(self.word)[0]

    @property
    def header(self) -> int:
        """The size of a pool_header."""
        return _sizes(self.word)[1]

    @property
    def used(self) -> int:
        """The size of the array usedpools: two words for each class."""
        return 2 * self.classes * self.word

    @property
    def last(self) -> int:
        """The size of the array nfp2lasta: a word for each number of free pools."""
        return (POOLS + 1) * self.word

    def size(self, index: int) -> int:
        """Return the size of a block of size class `index`."""
        return (index + 1) * self.align

    def block_count(self, pool: int, index: int) -> int:
        """Return the number of blocks of this class in a pool of `pool` bytes (NUMBLOCKS)."""
        return (pool - self.header) // self.size(index)


def layout_of(arch: Arch) -> Layout:
    """Return the layout of an architecture: ALIGNMENT is 16 with words of 8 bytes, otherwise 8."""
    return Layout(arch.word, 2 * arch.word)


class Variables(NamedTuple):
    """Offsets of the allocator's variables from `arenas`, in words."""

    name: str
    maximum: int  # maxarenas
    unused: int  # unused_arena_objects
    usable: int  # usable_arenas
    last: int  # nfp2lasta
    current: int  # narenas_currently_allocated
    times: int  # ntimes_arena_allocated
    highwater: int  # narenas_highwater
    used: int = 0  # usedpools, or 0 if it is elsewhere


_N = POOLS + 1  # words of nfp2lasta
_ROOT = 1 << 15  # words of arena_map_root in 3.11


def _variables() -> Iterator[Variables]:
    """Yield the layouts, newest first. Up to 3.11 these are separate variables, in an order that
    the compiler chose."""
    yield Variables(
        "3.12 and later (struct _obmalloc_mgmt)",
        maximum=1,
        unused=2,
        usable=3,
        last=4,
        current=4 + _N,
        times=5 + _N,
        highwater=6 + _N,
        used=-POOLS,
    )
    # Debian's 3.9, and 3.11 for x86-64. nfp2lasta is aligned to 32 bytes.
    for last in 2, 3:
        counts = {"current": -3, "times": -4, "highwater": -5}
        yield Variables("3.9 to 3.11, link-time optimised", maximum=-2, unused=-1, usable=last + _N, last=last, **counts)
    yield Variables("3.11 for AArch64, link-time optimised", maximum=-1, unused=-2, usable=-3, last=4, current=1, times=2, highwater=3)
    # Debian's libpython3.11: arena_map_root lies between the variables.
    at = -_ROOT - 6
    counts = {"current": at - 2 - _N, "times": at - 3 - _N, "highwater": at - 4 - _N}
    yield Variables("3.11, library, link-time optimised", maximum=-1, unused=at, usable=at - 1, last=at - 1 - _N, **counts)
    # The order in which GCC places the variables without link-time optimisation (python.org's
    # builds): the reverse order of the source.
    counts = {"current": -4 - _N, "times": -5 - _N, "highwater": -6 - _N}
    yield Variables("3.9 to 3.11", maximum=-1, unused=-2, usable=-3, last=-3 - _N, **counts)


VARIABLES = tuple(_variables())

NEAR = 2 * _N + 16  # words around `arenas` that include all variables
