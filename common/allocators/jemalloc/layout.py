"""Layouts of jemalloc's structures by release, newest first; memory decides which row fits. Offsets
and sizes are bytes. Compared with the DWARF of 5.2.1, 5.3.0 and 5.3.1 for x86-64, i386 and ARM."""

from __future__ import annotations

from typing import NamedTuple

from findleaks.target.arch import Arch

FRAME = 2 << 20  # bytes; the base's blocks are aligned multiples of it (base.c, HUGEPAGE_CEILING)

CACHELINE = 64
BINS_52 = 16  # offset of the small bins in tcache_s, 5.2
ARENAS = 4095  # MALLOCX_ARENA_LIMIT less one (jemalloc_internal_types.h)
NO_ARENA = 4095  # arena_ind of a descriptor that belongs to no arena

ACTIVE, DIRTY, MUZZY, RETAINED = 0, 1, 2, 3
KEPT = 8  # findleaks' name for pages that are active and of no size class
STATES = ("active", "dirty", "muzzy", "retained")


class Extent(NamedTuple):
    """extent_t or edata_t, a descriptor of pages: 64 bits, a word of its address, one of size and
    esn. The numbers are shifts in the bits; arena is bits 0-11, slab bit 12."""

    name: str
    state: int
    state_bits: int
    szind: int
    nfree: int
    hpa: int  # bit for extents of the hugepage allocator; -1 where there is none
    next: int  # offset of the link in the list of large extents, or of full slabs
    prev: int
    bitmap: int = 64  # offset of a slab's bitmap
    arena_mask: int = 0xFFF
    slab: int = 12
    # Bytes from a thread's random numbers in tsd_t to its cache; 0: they are too large to be
    # addresses by chance.
    random: int = 0


EDATA = Extent("5.3", 17, 3, 20, 28, 14, 40, 48)  # edata.h, 5.3.0 and 5.3.1
EXTENT = Extent("5.2", 16, 2, 18, 26, -1, 24, 32)  # extent_structs.h, 5.2.0 and 5.2.1


class Bin(NamedTuple):
    """bin_t, one for each small class and shard; `stats`: bin_stats_t, a word per BIN_STATS."""

    extent: Extent
    size: int
    slabcur: int
    nonfull: int
    full: int
    stats: int


BINS = (
    Bin(EDATA, 224, 192, 200, 216, 112),  # bin.h, 5.3.0 and 5.3.1
    Bin(EXTENT, 280, 112, 120, 128, 136),  # bin.h, 5.2.1
    # The same behind a pthread_mutex_t of 48 bytes instead of 40 (AArch64).
    Bin(EDATA, 232, 200, 208, 224, 120),
    Bin(EXTENT, 288, 120, 128, 136, 144),
)

BIN_STATS_MEMBERS = "QQQPQQQQPP"  # see Arch.structure
BIN_STATS = ("nmalloc", "ndalloc", "nrequests", "curregs", "nfills", "nflushes", "nslabs", "reslabs", "curslabs", "nonfull_slabs")


class Large(NamedTuple):
    """arena_stats_large_t, one for each large class; begins with nmalloc and ndalloc."""

    size: int
    nrequests: int
    nflushes: int


LARGES = (
    Large(56, 24, 40),  # arena_stats.h, 5.3.1: active_bytes came third
    Large(48, 16, 32),  # 5.2.1 and 5.3.0
)


class ArenaStats(NamedTuple):
    """Offsets in arena_s. `internal`: bytes that jemalloc took for itself (stats.internal);
    `large`: counters of large classes; `tcaches`, behind them: list of thread caches. Programs
    without thread caches, or without large blocks, show only one of the latter two."""

    large: int
    tcaches: int
    internal: int


INTERNAL = (
    # arena_structs.h and arena_stats.h, with pages of 4 KiB: 5.3.1, 5.3.0, 5.2.1
    ArenaStats(992, 11976, 24 + 48),
    ArenaStats(976, 10392, 24 + 32),
    ArenaStats(768, 10184, 24 + 80),
)


class Layouts(NamedTuple):
    """What there is where words have a size and 64-bit numbers an alignment, newest first."""

    extents: tuple[Extent, ...]
    bins: tuple[Bin, ...]
    larges: tuple[Large, ...]
    arenas: tuple[ArenaStats, ...]


def layouts(arch: Arch) -> Layouts:
    if arch.word == 8:
        return Layouts((EDATA, EXTENT), BINS, LARGES, INTERNAL)
    return PACKED if arch.long_alignment == 4 else ALIGNED


_NARROW = EDATA._replace(nfree=27), EXTENT._replace(nfree=25)  # there are fewer classes
_PACKED = _NARROW[0]._replace(next=28, prev=32, bitmap=40, random=116), _NARROW[1]._replace(next=16, prev=20, bitmap=36, random=276)
_ALIGNED = _NARROW[0]._replace(next=32, prev=36, bitmap=48, random=120), _NARROW[1]._replace(next=16, prev=20, bitmap=40, random=280)
PACKED = Layouts(
    _PACKED,
    (Bin(_PACKED[0], 172, 156, 160, 168, 88), Bin(_PACKED[1], 228, 88, 92, 96, 100)),
    (Large(52, 24, 40), Large(44, 16, 32)),
    (ArenaStats(968, 4512, 128), ArenaStats(960, 3960, 120), ArenaStats(772, 3772, 168)),
)
ALIGNED = Layouts(
    _ALIGNED,
    (Bin(_ALIGNED[0], 184, 168, 172, 180, 96), Bin(_ALIGNED[1], 248, 96, 100, 104, 112)),
    (Large(56, 24, 40), Large(48, 16, 32)),
    (ArenaStats(1032, 4848, 136), ArenaStats(1024, 4296, 128), ArenaStats(824, 4096, 180)),
)
"""Words of 4 bytes, 64-bit numbers aligned to 4 (i386) or 8 (ARM)."""


class Profile(NamedTuple):
    """Offsets in prof_tctx_t, whose first word points to its prof_tdata_t: its prof_gctx_t, its
    tree's links; its prof_cnt_t, of counters that each have an unbiased one behind them if
    `unbiased`. In prof_tdata_t: its hash table, the pointer to its name's block (0: none), and the
    byte that says that its counts expired (prof.reset). `tctx`: in the descriptor of an extent."""

    context: int
    link: int
    table: int
    name: int
    counters: int
    unbiased: bool
    expired: int
    tctx: int


PROFILES = (
    # prof_structs.h and edata.h (extent_structs.h): 5.3.1, 5.3.0, 5.2.1
    Profile(96, 112, 48, 0, 32, True, 118, 80),
    Profile(96, 112, 64, 24, 32, True, 33, 80),
    Profile(56, 72, 64, 24, 24, False, 33, 72),
)
NOT_SAMPLED = 1  # a block's prof_tctx_t if it has none; 0 before the profiler was on
UNBIASED_SHIFT = 8  # 1 << SC_LG_TINY_MIN, by which unbiased counts of blocks are multiplied


class Levels(NamedTuple):
    """How the bits of an address lead to its descriptor in the radix tree (rtree.h)."""

    address: int  # significant bits of an address, LG_VADDR
    root: int
    inner: tuple[int, ...]  # bits of the levels between root and leaf
    leaf: int
    element: int  # bytes of a leaf's element: descriptor and class packed in a word, or apart
    packed: bool

    def under_root(self, page: int) -> int:
        """Bits of an address below those that select an element of the root."""
        return page + self.leaf + sum(self.inner)


def levels(page: int, word: int) -> list[Levels]:
    """Possible trees with pages of 2 ** `page` bytes: rtree.h splits the bits into two or three
    levels, the later with the remainder. An element lacks space for the class from 57 bits on; 64
    are assumed on machines other than x86-64 and AArch64 (configure.ac). With words of 4 bytes, it
    is {descriptor, class and flags} in 5.3, in 5.2 {descriptor, class, flag}."""
    if word == 4:
        return [Levels(32, (32 - page) // 2, (), (33 - page) // 2, element, False) for element in (8, 12)]
    found = []
    for address in (48, 57, 64):
        bits, packed = address - page, 64 - address >= 8
        element = 8 if packed else 16
        if bits <= 36:
            found.append(Levels(address, bits // 2, (), bits // 2 + bits % 2, element, packed))
        else:
            rest = bits % 3
            found.append(Levels(address, bits // 3, (bits // 3 + rest // 2,), bits // 3 + rest - rest // 2, element, packed))
    return found
