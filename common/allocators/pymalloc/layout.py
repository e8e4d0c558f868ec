"""Layouts of CPython's small-object allocator.

Sources: Objects/obmalloc.c (3.9 to 3.11) and Include/internal/pycore_obmalloc.h (3.12 to 3.14) of
CPython 3.9.2, 3.10.13, 3.11.2, 3.12.1, 3.13.5 and 3.14.10.

An arena, described by an arena_object, is cut into 64 pools, and a pool into equal blocks behind
its header. Their fields are the same since 2.5, only sizes changed: arenas of 256 KiB and pools of
4 KiB up to 3.9; 1 MiB and 16 KiB since 3.10 (with the radix tree of arenas, the default)."""

from __future__ import annotations

from typing import NamedTuple

from findleaks.target.arch import Arch

POOLS = 64  # MAX_POOLS_IN_ARENA; one less if the arena is not aligned to a pool's size

POOL_SIZES = (1 << 14, 1 << 12)  # POOL_SIZE, bytes: 3.10 and later, 3.9

SMALLEST_ARENAS = 16  # INITIAL_ARENA_OBJECTS: length of the array of arena_objects; it doubles

MAX_ARENAS = 1 << 24  # elements of the array, at most
LARGEST = 512  # SMALL_REQUEST_THRESHOLD, bytes: larger requests go to malloc


class Layout(NamedTuple):
    """Sizes that follow from the word: those of arena_object, pool_header and the arrays."""

    word: int
    align: int

    @property
    def classes(self) -> int:
        return LARGEST // self.align

    @property
    def object(self) -> int:
        """Bytes of an arena_object: address and pool_address, words; nfreepools and ntotalpools, 32
        bits; freepools, nextarena and prevarena, words."""
        return 5 * self.word + 8

    @property
    def header(self) -> int:
        """Bytes of a pool_header: ref.count, in a word; freeblock, nextpool and prevpool, words;
        arenaindex, szidx, nextoffset and maxnextoffset, 32 bits."""
        return 4 * self.word + 16

    @property
    def used(self) -> int:
        """Bytes of the array usedpools: two words a class."""
        return 2 * self.classes * self.word

    @property
    def last(self) -> int:
        """Bytes of the array nfp2lasta: a word for each number of free pools."""
        return (POOLS + 1) * self.word

    def size(self, index: int) -> int:
        """Bytes of a block of size class `index`."""
        return (index + 1) * self.align

    def block_count(self, pool: int, index: int) -> int:
        """Blocks of this class that a pool of `pool` bytes holds (NUMBLOCKS)."""
        return (pool - self.header) // self.size(index)


def layout_of(arch: Arch) -> Layout:
    """The layout for an architecture: ALIGNMENT is 16 where words have 8 bytes, else 8."""
    return Layout(arch.word, 2 * arch.word)


class Variables(NamedTuple):
    """Offsets of the allocator's variables from `arenas`, in words: maxarenas,
    unused_arena_objects, usable_arenas, nfp2lasta, narenas_currently_allocated,
    ntimes_arena_allocated, narenas_highwater; and usedpools, 0 where it is elsewhere."""

    name: str
    maximum: int
    unused: int
    usable: int
    last: int
    current: int
    times: int
    highwater: int
    used: int


_N = POOLS + 1
_ROOT = 1 << 15  # words of arena_map_root in 3.11

VARIABLES = (
    Variables("3.12 and later (struct _obmalloc_mgmt)", 1, 2, 3, 4, 4 + _N, 5 + _N, 6 + _N, -POOLS),
    Variables("3.9 to 3.11, link-time optimised", -2, -1, 2 + _N, 2, -3, -4, -5, 0),
    Variables("3.9 to 3.11, link-time optimised", -2, -1, 3 + _N, 3, -3, -4, -5, 0),
    Variables("3.11 for AArch64, link-time optimised", -1, -2, -3, 4, 1, 2, 3, 0),
    Variables(
        "3.11, library, link-time optimised",
        -1,
        -_ROOT - 6,
        -_ROOT - 7,
        -_ROOT - 7 - _N,
        -_ROOT - 8 - _N,
        -_ROOT - 9 - _N,
        -_ROOT - 10 - _N,
        0,
    ),
    Variables("3.9 to 3.11", -1, -2, -3, -3 - _N, -4 - _N, -5 - _N, -6 - _N, 0),
)
"""Newest first. Up to 3.11 they are separate variables in the compiler's order: the reverse of
their declarations (python.org's sources with GCC), or that of link-time optimisation (Debian's 3.9
and 3.11: nfp2lasta is aligned to 32; its libpython3.11 has arena_map_root in between)."""

NEAR = 2 * _N + 16  # words around `arenas` within which all of them are
