"""Layouts of jemalloc's structures by release, newest first. Offsets and sizes are in bytes.

The layout is selected by the content of memory. All layouts were compared with the DWARF of 5.2.1,
5.3.0 and 5.3.1 for x86-64, i386 and ARM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from findleaks.allocators.record import Record
from findleaks.target.arch import Arch

FRAME = 2 << 20  # bytes; size unit and alignment of the base's blocks (base.c, HUGEPAGE_CEILING)

CACHELINE = 64
BINS_52 = 16  # offset of the small bins in tcache_s, 5.2
ARENAS = 4095  # MALLOCX_ARENA_LIMIT less one (jemalloc_internal_types.h)
NO_ARENA = 4095  # arena_ind of a descriptor that belongs to no arena

ACTIVE, DIRTY, MUZZY, RETAINED = 0, 1, 2, 3
KEPT = 8  # findleaks' name for active pages of no size class
STATES = ("active", "dirty", "muzzy", "retained")


class ExtentLayout(NamedTuple):
    """extent_t or edata_t, a descriptor of pages: 64 bits, then a word of address, and a word of
    size and esn.

    state, szind, nfree, hpa and slab are the positions of fields in the 64 bits. Bits 0 to 11 are
    the arena."""

    name: str
    state: int
    state_bits: int
    szind: int
    nfree: int
    hpa: int  # position of the bit for the hugepage allocator; -1 if the release has none
    next: int  # offset of the link in the list of large extents, or of full slabs
    prev: int
    bitmap: int = 64  # offset of a slab's bitmap
    arena_mask: int = 0xFFF
    slab: int = 12
    # Bytes from a thread's random numbers in tsd_t to its cache. It is 0 if words have 8 bytes: the
    # numbers are then too large to look like addresses, so no distance is needed.
    random: int = 0


# edata.h, 5.3.0 and 5.3.1
EDATA = ExtentLayout("5.3", state=17, state_bits=3, szind=20, nfree=28, hpa=14, next=40, prev=48)
# extent_structs.h, 5.2.0 and 5.2.1
EXTENT = ExtentLayout("5.2", state=16, state_bits=2, szind=18, nfree=26, hpa=-1, next=24, prev=32)


class BinLayout(NamedTuple):
    """The layout of bin_t: offsets of its fields, and its size. An arena has one bin_t for each
    small class and shard. `stats` is bin_stats_t, with the counters BIN_STATS."""

    extent: ExtentLayout
    size: int
    slabcur: int
    nonfull: int
    full: int
    stats: int


BIN_STATS_MEMBERS = "QQQPQQQQPP"  # see Arch.structure
BIN_STATS = ("nmalloc", "ndalloc", "nrequests", "curregs", "nfills", "nflushes", "nslabs", "reslabs", "curslabs", "nonfull_slabs")


def _bins(extents: Sequence[ExtentLayout], word: int, align: int, mutex: int, stats: int, profile: int) -> tuple[BinLayout, ...]:
    """Return bin_t of 5.3.0 and 5.3.1, and of 5.2.1 (bin.h).

    In bytes: `align` is the alignment of 64-bit numbers, `mutex` the size of a malloc_mutex_t,
    `stats` the size of the counters, and `profile` the size of the mutex's profile after them
    (5.2.1)."""
    padding = -(mutex + 3 * word) % align
    newer = Record(f"{mutex}x, {stats}x stats, W slabcur, 2W nonfull, W full", word)
    older = Record(f"{mutex}x, W slabcur, W nonfull, W full, {padding}x, {stats}x stats, {profile}x", word)
    rows = zip(extents, (newer, older))
    return tuple(BinLayout(extent, row.size, row["slabcur"], row["nonfull"], row["full"], row["stats"]) for extent, row in rows)


class LargeLayout(NamedTuple):
    """The layout of arena_stats_large_t, which begins with nmalloc and ndalloc. An arena has one
    for each large class."""

    size: int
    nrequests: int
    nflushes: int


class ArenaStats(NamedTuple):
    """Offsets in arena_s.

    `internal` counts the bytes that jemalloc allocated for itself (stats.internal). `large` are the
    counters of large classes, followed by `tcaches`, the list of thread caches. A program without
    thread caches, or without large blocks, shows only one of these two."""

    large: int
    tcaches: int
    internal: int


class Layouts(NamedTuple):
    """The layouts for a word size and an alignment of 64-bit numbers, newest first."""

    extents: tuple[ExtentLayout, ...]
    bins: tuple[BinLayout, ...]
    larges: tuple[LargeLayout, ...]
    arenas: tuple[ArenaStats, ...]


def get_layouts(arch: Arch) -> Layouts:
    """Return the layouts of a machine."""
    if arch.word == 8:
        return WIDE
    return PACKED if arch.long_alignment == 4 else ALIGNED


LARGES = (  # arena_stats.h
    LargeLayout(size=56, nrequests=24, nflushes=40),  # 5.3.1: active_bytes is third
    LargeLayout(size=48, nrequests=16, nflushes=32),  # 5.2.1 and 5.3.0
)

# The arenas of 5.3.1, 5.3.0 and 5.2.1 (arena_structs.h and arena_stats.h), with pages of 4 KiB.
WIDE = Layouts(
    (EDATA, EXTENT),
    (
        *_bins((EDATA, EXTENT), word=8, align=8, mutex=112, stats=80, profile=64),
        # AArch64: a pthread_mutex_t has 48 bytes instead of 40.
        *_bins((EDATA, EXTENT), word=8, align=8, mutex=120, stats=80, profile=64),
        # Commits between 5.3.0 and 5.3.1, such as that in DuckDB: there are four more counters, of
        # batches (bin_stats.h).
        *_bins((EDATA,), word=8, align=8, mutex=112, stats=112, profile=64),
    ),
    LARGES,
    (
        ArenaStats(large=992, tcaches=11976, internal=24 + 48),
        ArenaStats(large=976, tcaches=10392, internal=24 + 32),
        ArenaStats(large=768, tcaches=10184, internal=24 + 80),
    ),
)
BINS = WIDE.bins

_NARROW = EDATA._replace(nfree=27), EXTENT._replace(nfree=25)  # there are fewer size classes
_PACKED = (
    _NARROW[0]._replace(next=28, prev=32, bitmap=40, random=116),
    _NARROW[1]._replace(next=16, prev=20, bitmap=36, random=276),
)
_ALIGNED = (
    _NARROW[0]._replace(next=32, prev=36, bitmap=48, random=120),
    _NARROW[1]._replace(next=16, prev=20, bitmap=40, random=280),
)
PACKED = Layouts(
    _PACKED,
    _bins(_PACKED, word=4, align=4, mutex=88, stats=68, profile=60),
    (LargeLayout(size=52, nrequests=24, nflushes=40), LargeLayout(size=44, nrequests=16, nflushes=32)),
    (
        ArenaStats(large=968, tcaches=4512, internal=128),
        ArenaStats(large=960, tcaches=3960, internal=120),
        ArenaStats(large=772, tcaches=3772, internal=168),
    ),
)
ALIGNED = Layouts(
    _ALIGNED,
    _bins(_ALIGNED, word=4, align=8, mutex=96, stats=72, profile=64),
    (LargeLayout(size=56, nrequests=24, nflushes=40), LargeLayout(size=48, nrequests=16, nflushes=32)),
    (
        ArenaStats(large=1032, tcaches=4848, internal=136),
        ArenaStats(large=1024, tcaches=4296, internal=128),
        ArenaStats(large=824, tcaches=4096, internal=180),
    ),
)
"""Words of 4 bytes, with 64-bit numbers aligned to 4 (PACKED, i386) or 8 bytes (ALIGNED, ARM)."""


class ProfileLayout(NamedTuple):
    """Offsets in the structures of the heap profiler.

    In prof_tctx_t, whose first word points to its prof_tdata_t: `context` is its prof_gctx_t,
    `link` its links in a tree, `counters` its prof_cnt_t. If `unbiased`, an unbiased counter
    follows each counter.

    In prof_tdata_t: `table` is its hash table, `name` the pointer to the block with its name (0 if
    there is none), `expired` the byte that marks its counts as expired (prof.reset).

    `tctx` is in the descriptor of an extent."""

    context: int
    link: int
    table: int
    name: int
    counters: int
    unbiased: bool
    expired: int
    tctx: int


# prof_structs.h and edata.h (extent_structs.h): 5.3.1, 5.3.0, 5.2.1
PROFILES = (
    ProfileLayout(context=96, link=112, table=48, name=0, counters=32, unbiased=True, expired=118, tctx=80),
    ProfileLayout(context=96, link=112, table=64, name=24, counters=32, unbiased=True, expired=33, tctx=80),
    ProfileLayout(context=56, link=72, table=64, name=24, counters=24, unbiased=False, expired=33, tctx=72),
)
NOT_SAMPLED = 1  # the prof_tctx_t of a block that was not sampled; 0 before the profiler was on
UNBIASED_SHIFT = 8  # 1 << SC_LG_TINY_MIN, by which unbiased counts of blocks are multiplied


class Levels(NamedTuple):
    """The address bits that select an element in each level of the radix tree (rtree.h)."""

    address: int  # significant bits of an address, LG_VADDR
    root: int
    inner: tuple[int, ...]  # address bits of the levels between root and leaf
    leaf: int
    element: int  # bytes of a leaf's element
    packed: bool  # whether an element has the descriptor and the class in one word

    def under_root(self, page: int) -> int:
        """Return the number of address bits below the bits that select an element of the root."""
        return page + self.leaf + sum(self.inner)


def list_levels(page: int, word: int) -> list[Levels]:
    """Return the possible trees with pages of 2 ** `page` bytes.

    rtree.h divides the bits evenly into two or three levels; the remainder goes to the later
    levels. An element has no space for the class if addresses have 57 bits or more. On machines
    other than x86-64 and AArch64, 64 bits are assumed (configure.ac). With words of 4 bytes, an
    element is {descriptor, class and flags} in 5.3, and {descriptor, class, flag} in 5.2."""
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
