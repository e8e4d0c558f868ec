"""Layouts of glibc's malloc structures by release, newest first; offsets and sizes in bytes.

The content of memory decides which row fits (locate.py, tcache.py), never the version number
that a library states. `since` and `until` name the releases that a row is of: for reports, and
for two rules of 2.43 that are no offsets (locate.py, verify.py), once the row is known. From
malloc/malloc.c and malloc/arena.c of the releases named. For x86-64, rows of 2.31, 2.36, 2.41 and
2.43 were compared with DWARF of Debian's packages; for 32 bits, those of 2.31 to 2.43 with i386's
and arm's. Rows that end before 2.31 are read from the source only."""

from __future__ import annotations

from findleaks.allocators.memory import Memory
from findleaks.value_classes import dataclass

Version = tuple[int, int]
NEWEST: Version = (2, 99)  # in place of the last release: the newest known has the layout
NBINS = 127  # unsorted, 62 small, 63 large, one never used (malloc.c's 128 less the absent bin 0)
PREV_INUSE, IS_MMAPPED, NON_MAIN_ARENA, FLAG_BITS = 1, 2, 4, 7
NONCONTIGUOUS = 2  # in malloc_state.flags


@dataclass(frozen=True, eq=False, repr=False)
class Layout:
    """The releases that have a layout, and their bytes of a word."""

    since: Version
    until: Version
    word: int


@dataclass(frozen=True, eq=False, repr=False)
class StateLayout(Layout):
    """struct malloc_state."""

    align: int  # MALLOC_ALIGNMENT
    flags: int
    fastbin: int  # offset of the fastbins
    fastbins: int  # number of fastbins
    top: int
    bins: int
    next: int
    attached: int  # -1 where missing
    system_mem: int  # max_system_mem is the next word
    size: int


STATES: tuple[StateLayout, ...] = (
    # 2.43: fastbins and have_fastchunks are gone.
    StateLayout((2, 43), (2, 99), 8, 16, 4, 0, 0, 8, 24, 2072, 2088, 2096, 2112),
    StateLayout((2, 43), (2, 99), 4, 16, 4, 0, 0, 8, 16, 1048, 1056, 1060, 1068),
    StateLayout((2, 43), (2, 99), 4, 8, 4, 0, 0, 8, 16, 1048, 1056, 1060, 1068),
    # 2.27 – 2.42: have_fastchunks became an int of its own. i386 has 16-byte alignment since 2.26,
    # hence one fastbin more.
    StateLayout((2, 27), (2, 42), 8, 16, 4, 16, 10, 96, 112, 2160, 2176, 2184, 2200),
    StateLayout((2, 27), (2, 42), 4, 16, 4, 12, 11, 56, 64, 1096, 1104, 1108, 1116),
    StateLayout((2, 27), (2, 42), 4, 8, 4, 12, 10, 52, 60, 1092, 1100, 1104, 1112),
    # 2.23 – 2.26: attached_threads added.
    StateLayout((2, 23), (2, 26), 8, 16, 4, 8, 10, 88, 104, 2152, 2168, 2176, 2192),
    StateLayout((2, 23), (2, 26), 4, 8, 4, 8, 10, 48, 56, 1088, 1096, 1100, 1108),
    # 2.11 – 2.22: next_free appeared with the free list of arenas.
    StateLayout((2, 11), (2, 22), 8, 16, 4, 8, 10, 88, 104, 2152, -1, 2168, 2184),
    StateLayout((2, 11), (2, 22), 4, 8, 4, 8, 10, 48, 56, 1088, -1, 1096, 1104),
)


@dataclass(frozen=True, eq=False, repr=False)
class ParLayout(Layout):
    """struct malloc_par (`mp_`)."""

    n_mmaps: int  # int; n_mmaps_max and max_n_mmaps follow, an int each
    mmapped_mem: int  # max_mmapped_mem is the next word
    sbrk_base: int
    tcache_bins: int  # -1 if missing; tcache_max_bytes and tcache_count follow, a word each
    hp_pagesize: int  # -1 where missing
    size: int

    def offset(self, name: str) -> int:
        """Offset of a field of FIRST or this class, "no_dyn_threshold" or "tcache_count", or -1."""
        if name in FIRST:
            return FIRST.index(name) * self.word
        if name == "no_dyn_threshold":
            return self.n_mmaps + 12
        if name == "tcache_count":
            return self.tcache_bins + 2 * self.word if self.tcache_bins >= 0 else -1
        return int(getattr(self, name))


FIRST = ("trim_threshold", "top_pad", "mmap_threshold", "arena_test", "arena_max")
"""The first words of malloc_par since 2.10. no_dyn_threshold is the fourth int from n_mmaps on."""

PARS: tuple[ParLayout, ...] = (
    # 2.43: thp_mode before thp_pagesize; tcache_bins is called tcache_small_bins since 2.42.
    ParLayout((2, 43), (2, 99), 8, 68, 88, 104, 112, 56, 144),
    ParLayout((2, 43), (2, 99), 4, 36, 52, 60, 64, 28, 80),
    # 2.35 – 2.42: thp_pagesize, hp_pagesize, hp_flags (the tunable glibc.malloc.hugetlb).
    ParLayout((2, 35), (2, 42), 8, 60, 80, 96, 104, 48, 136),
    ParLayout((2, 35), (2, 42), 4, 32, 48, 56, 60, 24, 76),
    # 2.26 – 2.34: thread caches.
    ParLayout((2, 26), (2, 34), 8, 40, 56, 72, 80, -1, 112),
    ParLayout((2, 26), (2, 34), 4, 20, 36, 44, 48, -1, 64),
    # 2.24 – 2.25: max_total_mem dropped.
    ParLayout((2, 24), (2, 25), 8, 40, 56, 72, -1, -1, 80),
    ParLayout((2, 24), (2, 25), 4, 20, 36, 44, -1, -1, 48),
    # 2.15 – 2.23.
    ParLayout((2, 15), (2, 23), 8, 40, 56, 80, -1, -1, 88),
    ParLayout((2, 15), (2, 23), 4, 20, 36, 48, -1, -1, 52),
)


@dataclass(frozen=True, eq=False, repr=False)
class TcacheLayout(Layout):
    """struct tcache_perthread_struct: `bins` counters, then as many list heads.

    List i below 64 has chunks of (i + 2) * MALLOC_ALIGNMENT bytes (i386, with a least chunk of 16:
    (i + 1) * 16); lists from 64 on have large chunks, one list for each power of two."""

    counter: int  # bytes of a counter
    bins: int
    entries: int  # offset of the list heads
    slots: bool  # counters hold how many more entries a list may take, not how many it has

    @property
    def size(self) -> int:
        return self.entries + self.bins * self.word

    def chunk_size(self, align: int) -> int:
        """Size of the chunk malloc makes for it (malloc.c, request2size)."""
        return max((self.size + self.word + align - 1) & -align, 4 * self.word)


TCACHES: tuple[TcacheLayout, ...] = (
    # 2.42: num_slots, and 12 lists of large chunks.
    TcacheLayout((2, 42), (2, 99), 8, 2, 76, 152, True),
    TcacheLayout((2, 42), (2, 99), 4, 2, 76, 152, True),
    # 2.30 – 2.41: 16-bit counts.
    TcacheLayout((2, 30), (2, 41), 8, 2, 64, 128, False),
    TcacheLayout((2, 30), (2, 41), 4, 2, 64, 128, False),
    # 2.26 – 2.29: 8-bit counts.
    TcacheLayout((2, 26), (2, 29), 8, 1, 64, 64, False),
    TcacheLayout((2, 26), (2, 29), 4, 1, 64, 64, False),
)

SMALL_TCACHE_BINS = 64


@dataclass(frozen=True, eq=False, repr=False)
class HeapInfoLayout(Layout):
    """struct heap_info at the start of every heap of a thread arena: ar_ptr, prev, size,
    mprotect_size, a word each, then (2.35) pagesize and padding. Layouts differ only in size, which
    shows in the address of the first heap's arena."""

    size: int


HEAP_INFOS: tuple[HeapInfoLayout, ...] = (
    HeapInfoLayout((2, 35), (2, 99), 8, 48),
    HeapInfoLayout((2, 35), (2, 99), 4, 24),
    HeapInfoLayout((2, 10), (2, 34), 8, 32),
    HeapInfoLayout((2, 10), (2, 34), 4, 16),
    HeapInfoLayout((2, 26), (2, 34), 4, 24),  # i386: padded to 16-byte alignment
)

SAFE_LINKING: Version = (2, 32)

HEAP_MAXES = (64 << 20, 8 << 20, 1 << 20, 128 << 20, 32 << 20, 16 << 20, 4 << 20, 2 << 20, 512 << 10)
"""Sizes and alignments of a thread arena's heap, likeliest first: 64 MiB on 64-bit, 1 MiB on 32-bit
systems (arena.c: HEAP_MAX_SIZE is twice DEFAULT_MMAP_THRESHOLD_MAX), four of the huge pages that
the tunable hugetlb names (2.35, heap_max_size), and sizes seen in patched distributions."""


def first_chunk(memory: Memory, address: int, align: int) -> int:
    """The first address for a chunk from `address` on: its user pointer is aligned."""
    return address + -(address + 2 * memory.size) % align


def fencepost(memory: Memory, chunk: int, align: int) -> int:
    """Bytes of the fencepost at `chunk`, or 0. It ends a run of the main arena: two chunks of two
    words up to a page's end, or as near to it as chunks' alignment permits; three if old top had
    two words left, too few to free (sysmalloc)."""
    words = memory.words(chunk, 4)
    small = 2 * memory.size
    if words is None or words[1] & ~PREV_INUSE != small or words[3] != small | PREV_INUSE:
        return 0
    page, after = memory.arch.page, chunk + 2 * small
    rest = -after % align
    three = after % page and (after + small) % page == 0 and memory.word(after + memory.size) == small | PREV_INUSE
    return 3 * small if three and not rest else 2 * small + rest
