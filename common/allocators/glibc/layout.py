"""Layouts of glibc's malloc structures by release, newest first. Offsets and sizes are in bytes.

Sources: malloc/malloc.c and malloc/arena.c of the releases named. The layouts of 2.31, 2.36, 2.41
and 2.43 for x86-64 were compared with the DWARF of Debian's packages, and those of 2.31 to 2.43 for
32 bits with that of i386 and arm. Layouts that end before 2.31 are taken from the source only.

The layout is selected by the content of memory (locate.py, tcache.py), never by the version in a
library. `since` and `until` are the first and last release with a layout, for reports."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.allocators.memory import Memory
from findleaks.allocators.record import Record
from findleaks.value_classes import dataclass

Version = tuple[int, int]
NEWEST: Version = (2, 99)  # `until` of a layout that is in the newest known release
NBINS = 127  # unsorted, 62 small, 63 large, one never used; malloc.c counts a bin 0, too
BINMAP = 4  # words of 32 bits in malloc_state.binmap
PREV_INUSE, IS_MMAPPED, NON_MAIN_ARENA, FLAG_BITS = 1, 2, 4, 7
NONCONTIGUOUS = 2  # a flag in malloc_state.flags


@dataclass(frozen=True, eq=False, repr=False)
class GlibcLayout:
    """The releases that have a layout of a structure, and the size of a word in bytes."""

    since: Version
    until: Version
    word: int


@dataclass(frozen=True, eq=False, repr=False)
class StateLayout(GlibcLayout):
    """struct malloc_state: offsets of its fields. `fastbins` is the number of fastbins."""

    align: int  # MALLOC_ALIGNMENT
    flags: int
    fastbin: int  # the first fastbin
    fastbins: int
    top: int
    bins: int
    next: int
    attached: int  # attached_threads; -1 if the release does not have it
    system_mem: int  # max_system_mem is the next word
    size: int
    uncounted: int  # bytes at the end of a mmapped chunk that its size word does not count


def _state(since: Version, until: Version, word: int, align: int, fastbins: int, start: str, end: str, uncounted: int = 0) -> StateLayout:
    """Make a layout from the fields before the fastbins (`start`) and the fields after binmap
    (`end`)."""
    fast = f"{fastbins}W fastbins, " if fastbins else ""
    bins = f"W top, W last_remainder, {2 * NBINS}W bins, {BINMAP}I binmap"
    state = Record(f"{start}, {fast}{bins}, {end}, W system_mem, W max_system_mem", word)
    fastbin = state["fastbins"] if fastbins else 0
    offsets = state["top"], state["bins"], state["next"], state.get("attached_threads"), state["system_mem"]
    return StateLayout(since, until, word, align, state["flags"], fastbin, fastbins, *offsets, state.size, uncounted)


def _states() -> Iterator[StateLayout]:
    ring = "W next, W next_free, W attached_threads"
    # 2.43 has neither fastbins nor have_fastchunks, and does not count the last two words of a
    # mmapped chunk.
    for word, align in (8, 16), (4, 16), (4, 8):
        yield _state((2, 43), NEWEST, word, align, 0, "i mutex, i flags", ring, 2 * word)
    # In 2.27, have_fastchunks, a flag before, became a separate int. i386 has an alignment of 16
    # bytes since 2.26, and therefore one fastbin more.
    for word, align, fastbins in (8, 16, 10), (4, 16, 11), (4, 8, 10):
        yield _state((2, 27), (2, 42), word, align, fastbins, "i mutex, i flags, i have_fastchunks", ring)
    # 2.23 added attached_threads.
    for word, align in (8, 16), (4, 8):
        yield _state((2, 23), (2, 26), word, align, 10, "i mutex, i flags", ring)
    # 2.11 added next_free, the list of free arenas.
    for word, align in (8, 16), (4, 8):
        yield _state((2, 11), (2, 22), word, align, 10, "i mutex, i flags", "W next, W next_free")


STATES = tuple(_states())


@dataclass(frozen=True, eq=False, repr=False)
class ParLayout(GlibcLayout):
    """struct malloc_par (`mp_`): offsets of its fields, -1 for those that the release lacks."""

    n_mmaps: int  # an int; the ints n_mmaps_max, max_n_mmaps and no_dyn_threshold follow
    mmapped_mem: int  # max_mmapped_mem is the next word
    sbrk_base: int
    tcache_bins: int  # tcache_max_bytes and tcache_count are the next words
    hp_pagesize: int
    size: int
    tcache_excess: int  # tcache_max_bytes minus the largest cached request

    def offset(self, name: str) -> int:
        """Return the offset of a field of FIRST, of this class, or of "no_dyn_threshold" and
        "tcache_count"; -1 if the release lacks it."""
        if name in FIRST:
            return FIRST.index(name) * self.word
        if name == "no_dyn_threshold":
            return self.n_mmaps + 12
        if name == "tcache_count":
            return self.tcache_bins + 2 * self.word if self.tcache_bins >= 0 else -1
        return int(getattr(self, name))


FIRST = ("trim_threshold", "top_pad", "mmap_threshold", "arena_test", "arena_max")
"""The first words of malloc_par since 2.10."""


def _par(since: Version, until: Version, word: int, huge_pages: str, last: str, tcache_excess: int) -> ParLayout:
    """Make a layout from the fields for huge pages, and the fields after max_mmapped_mem
    (`last`)."""
    counts = "i n_mmaps, i n_mmaps_max, i max_n_mmaps, i no_dyn_threshold, W mmapped_mem, W max_mmapped_mem"
    par = Record(", ".join([*(f"W {name}" for name in FIRST), *filter(None, [huge_pages]), counts, last]), word)
    offsets = par["n_mmaps"], par["mmapped_mem"], par["sbrk_base"], par.get("tcache_bins"), par.get("hp_pagesize")
    return ParLayout(since, until, word, *offsets, par.size, tcache_excess)


def _pars() -> Iterator[ParLayout]:
    tcache = "W sbrk_base, W tcache_bins, W tcache_max_bytes, W tcache_count, W tcache_unsorted_limit"
    for since, until, huge_pages, last, counts_chunks in (
        # 2.43 added thp_mode, and its tcache_max_bytes is one more than the largest cached chunk.
        # Before, it was the largest cached request (malloc.c, tidx2usize). Since 2.42, tcache_bins
        # is called tcache_small_bins.
        ((2, 43), NEWEST, "i thp_mode, W thp_pagesize, W hp_pagesize, i hp_flags", tcache, True),
        # 2.35 added huge pages (the tunable glibc.malloc.hugetlb), 2.26 thread caches.
        ((2, 35), (2, 42), "W thp_pagesize, W hp_pagesize, i hp_flags", tcache, False),
        ((2, 26), (2, 34), "", tcache, False),
        # 2.24 removed max_total_mem.
        ((2, 24), (2, 25), "", "W sbrk_base", False),
        ((2, 15), (2, 23), "", "W max_total_mem, W sbrk_base", False),
    ):
        for word in 8, 4:
            yield _par(since, until, word, huge_pages, last, word + 1 if counts_chunks else 0)


PARS = tuple(_pars())


@dataclass(frozen=True, eq=False, repr=False)
class TcacheLayout(GlibcLayout):
    """struct tcache_perthread_struct: `bins` counters, then as many list heads.

    List i below 64 has chunks of (i + 2) * MALLOC_ALIGNMENT bytes. On i386, whose smallest chunk
    has 16 bytes, it has chunks of (i + 1) * 16 bytes. Each list from 64 on has large chunks,
    between two powers of two."""

    counter: int  # bytes of a counter
    bins: int
    entries: int  # offset of the list heads
    slots: bool  # a counter is the number of blocks that the list may still take

    @property
    def size(self) -> int:
        return self.entries + self.bins * self.word

    def chunk_size(self, align: int) -> int:
        """Return the size of the chunk that malloc allocates for the structure (malloc.c,
        request2size)."""
        return max((self.size + self.word + align - 1) & -align, 4 * self.word)


def _tcaches() -> Iterator[TcacheLayout]:
    for since, until, counter, bins, slots in (
        # 2.42 has num_slots instead of counts, and 12 lists of large chunks.
        ((2, 42), NEWEST, "H", 76, True),
        # 2.30 made the counters 16 bits long.
        ((2, 30), (2, 41), "H", 64, False),
        ((2, 26), (2, 29), "B", 64, False),
    ):
        for word in 8, 4:
            entries = Record(f"{bins}{counter} counts, {bins}W entries", word)["entries"]
            yield TcacheLayout(since, until, word, 2 if counter == "H" else 1, bins, entries, slots)


TCACHES = tuple(_tcaches())

SMALL_TCACHE_BINS = 64


@dataclass(frozen=True, eq=False, repr=False)
class HeapInfoLayout(GlibcLayout):
    """struct heap_info, at the start of each heap of a thread arena: ar_ptr, prev, size and
    mprotect_size, a word each, then (since 2.35) pagesize and padding.

    Layouts differ only in size. The address of the arena in the first heap shows the size."""

    size: int


HEAP_INFOS: tuple[HeapInfoLayout, ...] = (
    HeapInfoLayout((2, 35), NEWEST, word=8, size=48),
    HeapInfoLayout((2, 35), NEWEST, word=4, size=24),
    HeapInfoLayout((2, 10), (2, 34), word=8, size=32),
    HeapInfoLayout((2, 10), (2, 34), word=4, size=16),
    HeapInfoLayout((2, 26), (2, 34), word=4, size=24),  # i386: padded to an alignment of 16 bytes
)

SAFE_LINKING: Version = (2, 32)

HEAP_MAXES = (64 << 20, 8 << 20, 1 << 20, 128 << 20, 32 << 20, 16 << 20, 4 << 20, 2 << 20, 512 << 10)
"""Sizes of a thread arena's heap, which are also alignments, the likeliest first.

arena.c: HEAP_MAX_SIZE is twice DEFAULT_MMAP_THRESHOLD_MAX: 64 MiB on 64-bit systems and 1 MiB on
32-bit ones. With the tunable hugetlb it is four huge pages (2.35, heap_max_size). Patched
distributions have other sizes."""


def align_chunk(memory: Memory, address: int, align: int) -> int:
    """Return the first address from `address` on at which a chunk's block is aligned."""
    return address + -(address + 2 * memory.size) % align


def measure_fencepost(memory: Memory, chunk: int, align: int) -> int:
    """Return the number of bytes of the fencepost at `chunk`, or 0 if there is none.

    A fencepost ends a span of the main arena (sysmalloc). It consists of two chunks of two words
    each, which extend to the end of a page, or as near to it as the alignment of chunks permits. If
    two words were left of the old top, which are too few to free, there are three chunks."""
    words = memory.words(chunk, 4)
    small = 2 * memory.size
    if words is None or words[1] & ~PREV_INUSE != small or words[3] != small | PREV_INUSE:
        return 0
    page, after = memory.arch.page, chunk + 2 * small
    rest = -after % align
    three = after % page and (after + small) % page == 0 and memory.word(after + memory.size) == small | PREV_INUSE
    return 3 * small if three and not rest else 2 * small + rest
