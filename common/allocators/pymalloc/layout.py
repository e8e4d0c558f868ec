"""Layouts of CPython's small-object allocator, as data.

Sources: Objects/obmalloc.c (3.9 to 3.11) and Include/internal/pycore_obmalloc.h (3.12 to 3.14) of CPython 3.9.2, 3.10.13, 3.11.2, 3.12.1,
3.13.5 and 3.14.10. An arena is cut into 64 pools; a pool into equal blocks behind its header; an arena_object describes an arena. Their
fields have stood in one order since 2.5, and only sizes changed: arenas of 256 KiB with pools of 4 KiB up to 3.9, of 1 MiB with pools
of 16 KiB since 3.10 (where the radix tree of arenas is compiled in, as it is by default).
"""

from __future__ import annotations

from typing import NamedTuple

from findleaks.target.arch import Arch

POOLS = 64
"""Pools of an arena (MAX_POOLS_IN_ARENA); one less where the arena does not begin at a multiple of the pool's size."""

POOL_SIZES = (1 << 14, 1 << 12)
"""POOL_SIZE: 3.10 and later, 3.9."""

SMALLEST_ARENAS = 16
"""INITIAL_ARENA_OBJECTS: the array of arena_objects has this many elements, and doubles."""

MOST_ARENAS = 1 << 24
LARGEST = 512
"""SMALL_REQUEST_THRESHOLD: larger requests go to malloc."""


class Layout(NamedTuple):
    """Offsets that follow from the word: `object` is the size of an arena_object, `header` that of a pool_header."""

    word: int
    align: int

    @property
    def classes(self) -> int:
        return LARGEST // self.align

    @property
    def object(self) -> int:
        """address, pool_address: words; nfreepools, ntotalpools: 32 bits; freepools, nextarena, prevarena: words."""
        return 5 * self.word + 8

    @property
    def header(self) -> int:
        """ref.count in a word's room, freeblock, nextpool, prevpool: words; arenaindex, szidx, nextoffset, maxnextoffset: 32 bits."""
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

    def room(self, pool: int, index: int) -> int:
        """Blocks of this class that a pool of `pool` bytes holds (NUMBLOCKS)."""
        return (pool - self.header) // self.size(index)


def layout_of(arch: Arch) -> Layout:
    """ALIGNMENT is 16 where words have 8 bytes, and 8 elsewhere."""
    return Layout(arch.word, 2 * arch.word)


class Variables(NamedTuple):
    """Where the allocator's variables stand, relative to `arenas`: maxarenas, unused_arena_objects, usable_arenas, nfp2lasta,
    narenas_currently_allocated, ntimes_arena_allocated, narenas_highwater; in words. `used`: usedpools, 0 where it stands elsewhere."""

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
"""Newest first. Up to 3.11 they are variables of their own, and the compiler's choice is their order: backwards as they are declared
(python.org's sources with GCC), or as link-time optimisation has it (Debian's 3.9 and 3.11: nfp2lasta begins at a multiple of 32; in
its libpython3.11 arena_map_root stands between)."""

NEAR = 2 * _N + 16
"""Words within which all of them stand around `arenas`."""
