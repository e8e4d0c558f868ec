"""Layouts of libumem's structures, from the word size and from measurements in the process.

Source: OpenSolaris onnv-gate usr/src/lib/libumem/common (umem_impl.h, umem.c, vmem_impl_user.h,
vmem.c, malloc.c). What is read here did not change from 2005 to its ports to Linux. The sizes of
the system's mutexes and condition variables differ from libc to libc. So offsets behind them are
measured on structures of known contents: the cache "invalid_cache" and an arena's free lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from findleaks.allocators.memory import Memory

NAME = 32  # UMEM_CACHE_NAMELEN + 1
STATISTICS = (
    *("slab_create", "slab_destroy", "slab_alloc", "slab_free", "alloc_fail", "buftotal", "bufmax", "rescale", "lookup_depth"),
    *("depot_contention", "depot_contention_prev"),
)
"""The 64-bit counters at the start of struct umem_cache, named without "cache_"."""

# UMF_*
AUDIT, DEADBEEF, REDZONE, CONTENTS, NOMAGAZINE, FIREWALL, LITE, HASH = 0x1, 0x2, 0x4, 0x8, 0x20, 0x40, 0x100, 0x200
BUFTAG = DEADBEEF | REDZONE
QCACHE = 0x100000  # UMC_QCACHE: the cache hands out small pieces of its arena

FREE_PATTERN = 0xDEADBEEFDEADBEEF
REDZONE_PATTERN = 0xFEEDFACEFEEDFACE
REDZONE_BYTE = 0xBB
TAG_ALLOC, TAG_FREE = 0xA110C8ED, 0xF4EEF4EE  # bt_bxstat ^ bt_bufctl

TAG = 8
"""Bytes of malloc_data_t: size and status, four bytes each."""

MALLOC_MAGIC, SECOND_MAGIC, OVERSIZE_MAGIC, MEMALIGN_MAGIC = 0x3A10C000, 0x16BA7000, 0x06E47000, 0x3E3A1000
FREED_STAT = 0xDEADBEEF
"""Sums modulo 2^32 of the two words that malloc.c puts before a block.

The words are the block's size (tags included) and a status. free() writes 0xdeadbeef over the
status.
"""

SECOND_ALIGN = 16
"""Where words have 8 bytes, a request above this (tag included) gets two tags to align it to 16."""

SEG_ALLOC, SEG_FREE, SEG_SPAN, SEG_ROTOR, SEG_WALKER = 1, 2, 0x10, 0x20, 0x40  # vs_type
HASH_INITIAL, QCACHES = 16, 16  # VMEM_HASH_INITIAL, VMEM_NQCACHE_MAX
MAX_STACK = 64
"""Frames of a segment's stack that are tried, at most; VMEM_STACK_DEPTH is 20."""


@dataclass(frozen=True)
class CacheLayout:
    """Offsets in umem_cache_t. `mutex` is the size of the system's mutex."""

    word: int
    mutex: int

    name = 8 * len(STATISTICS)

    @property
    def bufsize(self) -> int:
        """cache_bufsize, the first of seven words.

        cache_align, constructor, destructor, reclaim, private and cache_arena follow.
        """
        return self.name + NAME

    @property
    def cflags(self) -> int:
        """cache_cflags; cache_flags, cache_uflags and cache_mtbf follow, four bytes each."""
        return self.bufsize + 7 * self.word

    @property
    def next(self) -> int:
        """cache_next, the first of four words.

        cache_prev, cache_unext, cache_uprev follow, then the 32 bits of cache_cpu_mask.
        """
        return self.cflags + 16

    @property
    def cpu_mask(self) -> int:
        return self.next + 4 * self.word

    @property
    def chunksize(self) -> int:
        """cache_chunksize.

        slabsize, bufctl, buftag, verify, contents, color, mincolor, maxcolor, hash_shift and
        hash_mask follow.
        """
        return lock(self.word) + self.mutex

    @property
    def nullslab(self) -> int:
        return self.chunksize + 12 * self.word

    @property
    def bufctl_cache(self) -> int:
        """cache_bufctl_cache, then cache_hash_table."""
        return self.nullslab + 7 * self.word

    @property
    def magtype(self) -> int:
        """cache_magtype, then cache_full and cache_empty.

        These two have list, total, min, reaplimit, and the 64 bits of ml_alloc.
        """
        return self.bufctl_cache + 2 * self.word + self.mutex

    @property
    def empty(self) -> int:
        return self.magtype + 5 * self.word + 8

    @property
    def cpus(self) -> int:
        return self.empty + 4 * self.word + 8

    @property
    def loaded(self) -> int:
        """cc_loaded in umem_cpu_cache_t.

        Before it are cc_alloc and cc_free, four bytes each. cc_ploaded follows, then cc_rounds,
        cc_prounds, cc_magsize and cc_flags, four bytes each.
        """
        return self.mutex + 8

    @property
    def stride(self) -> int:
        """Bytes of umem_cpu_cache_t: UMEM_CPU_CACHE_SIZE, a power of two."""
        size = 64
        while size < self.loaded + 2 * self.word + 16:
            size *= 2
        return size

    def cpu(self, number: int) -> int:
        """Offset of cache_cpu[number]."""
        return self.cpus + number * self.stride


def lock(word: int) -> int:
    """Offset of cache_lock, behind cache_cpu_mask."""
    return 8 * len(STATISTICS) + NAME + 7 * word + 16 + 4 * word + max(word, 4)


def measure_cache(memory: Memory, name: int) -> Optional[CacheLayout]:
    """The layout of the library whose umem_null_cache has its name at `name`.

    None where there is no such cache. cache_freelist refers to cache_nullslab, which follows it and
    is a slab of this cache with a count of -1.
    """
    word = memory.size
    cache = name - 8 * len(STATISTICS)
    base = cache + lock(word)
    words = memory.words(base, 64)
    if words is None:
        return None
    mask = memory.arch.mask
    for at in range(11, len(words) - 8):
        place = base + (at + 1) * word
        if words[at] == place and words[at + 1 : at + 8] == (cache, 0, place, place, 0, mask, 0):
            layout = CacheLayout(word, (at - 11) * word)
            rounds = memory.words(cache + layout.cpus + layout.loaded, 2 + 8 // word)
            return layout if rounds is not None and set(rounds[:2]) == {0} and set(rounds[2:]) == {mask} else None
    return None


MAX_COUNTERS = 64  # counters of a cache, at most


def other_counters(memory: Memory, name: int) -> int:
    """How many counters precede the name, in a library with another number of them.

    The rest of the cache must have the layout here. 0 where there is no ring of caches.
    """
    word = memory.size
    link = NAME + 7 * word + 16  # from the name to cache_next
    links = memory.words(name + link, 2)
    if links is None:
        return 0
    for counters in range(1, MAX_COUNTERS):
        null = name - 8 * counters
        after, before = (memory.word(place + 8 * counters + link + side) for place, side in zip(links, (word, 0)))
        if links[0] != null and after == null == before:
            return counters
    return 0


@dataclass(frozen=True)
class ArenaLayout:
    """Offsets in vmem_t, measured from vm_freelist; `seg`: bytes of a vmem_seg_t with its stack."""

    word: int
    freelist: int
    seg: int

    @property
    def size(self) -> int:
        return self.kstat + 13 * 8 + self.word

    @property
    def hash0(self) -> int:
        return self.freelist - (HASH_INITIAL + QCACHES) * self.word

    @property
    def seg0(self) -> int:
        """vm_seg0; vm_rotor follows."""
        return self.hash0 - 2 * self.seg

    @property
    def quantum(self) -> int:
        """vm_quantum, the first of twelve words.

        qcache_max, source_alloc, source_free, source, next, nsegfree, segfree, hash_table,
        hash_mask, hash_shift and freemap follow.
        """
        return self.seg0 - 12 * self.word

    @property
    def kstat(self) -> int:
        """vk_mem_inuse.

        import, total, the 32 bits of source_id, then alloc, free, wait and fail follow.
        """
        return self.freelist + (8 * self.word + 1) * 4 * self.word

    @property
    def kstat_alloc(self) -> int:
        return self.kstat + 24 + self.word


def measure_arena(memory: Memory, arena: int) -> Optional[ArenaLayout]:
    """The layout of the vmem_t at `arena`, or None.

    The heads of its free lists have a start of 0, and the powers of two as their ends.
    """
    word = memory.size
    for count in (640, 480, 400):  # as much as can be read: a static arena may end its segment
        words = memory.words(arena, count)
        if words is not None:
            break
    else:
        return None
    bits = 8 * word
    for at in range((QCACHES + HASH_INITIAL), len(words) - 4 * bits):
        if words[at + 1] == 1 and words[at] == 0 and _heads(words, at, bits):
            return _segments(memory, arena, at * word)
    return None


def _heads(words: Sequence[int], at: int, bits: int) -> bool:
    return all(words[at + 4 * i] == 0 and words[at + 4 * i + 1] == 1 << i for i in range(bits))


def _segments(memory: Memory, arena: int, freelist: int) -> Optional[ArenaLayout]:
    """The layout with the size of a segment, or None.

    vm_seg0 is a SPAN and vm_rotor, the segment behind it, a ROTOR.
    """
    word = memory.size
    fixed = 6 * word + max(word, 4) + word + 8
    for depth in (20, *range(MAX_STACK + 1)):
        layout = ArenaLayout(word, freelist, fixed + depth * word)
        if layout.quantum < 2 * word:
            continue
        kinds = [memory.int32(arena + layout.seg0 + number * layout.seg + 6 * word) for number in (0, 1)]
        if [kind is not None and kind & 0xFF for kind in kinds] == [SEG_SPAN, SEG_ROTOR]:
            return layout
    return None
