"""Layouts of libumem's structures, from the word size and from measurements in the process. Source:
OpenSolaris onnv-gate usr/src/lib/libumem/common (umem_impl.h, umem.c, vmem_impl_user.h, vmem.c,
malloc.c), unchanged from 2005 to its ports to Linux in what is read here. Sizes of mutexes and
condition variables differ from libc to libc, so offsets behind them are measured on structures of
known contents: the cache "invalid_cache" and an arena's free lists."""

from __future__ import annotations

from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.errors import UnreadableMemory

NAME = 32  # UMEM_CACHE_NAMELEN + 1
STATISTICS = (
    *("slab_create", "slab_destroy", "slab_alloc", "slab_free", "alloc_fail", "buftotal", "bufmax", "rescale", "lookup_depth"),
    *("depot_contention", "depot_contention_prev"),
)
"""The 64-bit counters at the start of struct umem_cache, named without "cache_"."""

# UMF_*
AUDIT, DEADBEEF, REDZONE, CONTENTS, FIREWALL, LITE, HASH = 0x1, 0x2, 0x4, 0x8, 0x40, 0x100, 0x200
BUFTAG = DEADBEEF | REDZONE
QCACHE = 0x100000  # UMC_QCACHE: the cache hands out small pieces of its arena

FREE_PATTERN = 0xDEADBEEFDEADBEEF
REDZONE_PATTERN = 0xFEEDFACEFEEDFACE
REDZONE_BYTE = 0xBB
TAG_ALLOC, TAG_FREE = 0xA110C8ED, 0xF4EEF4EE  # bt_bxstat ^ bt_bufctl
TAG = 8  # bytes of malloc_data_t: size and status, four bytes each

MALLOC_MAGIC, SECOND_MAGIC, OVERSIZE_MAGIC, MEMALIGN_MAGIC = 0x3A10C000, 0x16BA7000, 0x06E47000, 0x3E3A1000
"""Sums modulo 2^32 of the two words before a block of malloc.c: its size (tags included) and a
status. SECOND_MAGIC is the sum of the second tag, where there are two."""

FREED_STAT = 0xDEADBEEF  # the status that free() writes

WRAP = 1 << 32

SECOND_ALIGN = 16  # with 8-byte words, requests above (tag included) get two tags, to align to 16
SEG_ALLOC, SEG_FREE, SEG_SPAN, SEG_ROTOR, SEG_WALKER = 1, 2, 0x10, 0x20, 0x40  # vs_type
HASH_INITIAL, QCACHES = 16, 16  # VMEM_HASH_INITIAL, VMEM_NQCACHE_MAX
MAX_STACK = 64  # frames of a segment's stack that are tried, at most; VMEM_STACK_DEPTH is 20


class Structure:
    def __init__(self, data: bytes, memory: Memory) -> None:
        self.data = data
        self._word = memory.size
        self._order = memory.arch.byteorder

    def _number(self, offset: int, size: int) -> int:
        return int.from_bytes(self.data[offset : offset + size], self._order)

    def word(self, offset: int) -> int:
        return self._number(offset, self._word)

    def int32(self, offset: int) -> int:
        return self._number(offset, 4)

    def int64(self, offset: int) -> int:
        return self._number(offset, 8)

    def text(self, offset: int, size: int) -> bytes:
        """The bytes before the first 0, of `size` bytes."""
        return self.data[offset : offset + size].split(b"\0")[0]


def read_structure(memory: Memory, address: int, size: int) -> Optional[Structure]:
    if not 0 < address < memory.arch.mask - size:
        return None
    try:
        return Structure(memory.target.read(address, size), memory)
    except UnreadableMemory:
        return None


class CacheLayout:
    """Offsets in umem_cache_t. `mutex` is the size of the system's mutex."""

    name = 8 * len(STATISTICS)

    def __init__(self, word: int, mutex: int) -> None:
        self.word = word
        self.mutex = mutex
        # cache_bufsize, align, constructor, destructor, reclaim, private, cache_arena: a word each
        self.bufsize = self.name + NAME
        # cache_cflags, cache_flags, cache_uflags, cache_mtbf: four bytes each
        self.cflags = self.bufsize + 7 * word
        # cache_next, cache_prev, cache_unext, cache_uprev; then the 32 bits of cache_cpu_mask
        self.next = self.cflags + 16
        self.cpu_mask = self.next + 4 * word
        self.lock = self.cpu_mask + max(word, 4)
        # cache_chunksize, slabsize, bufctl, buftag, verify, contents, color, mincolor, maxcolor,
        # hash_shift, hash_mask, freelist: a word each
        self.chunksize = self.lock + mutex
        self.nullslab = self.chunksize + 12 * word
        self.bufctl_cache = self.nullslab + 7 * word  # cache_bufctl_cache, cache_hash_table
        # cache_magtype, then cache_full and cache_empty, which have list, total, min, reaplimit,
        # and the 64 bits of ml_alloc
        self.magtype = self.bufctl_cache + 2 * word + mutex
        self.empty = self.magtype + 5 * word + 8
        self.cpus = self.empty + 4 * word + 8
        # Of umem_cpu_cache_t: cc_loaded, behind cc_alloc and cc_free of four bytes each. cc_ploaded
        # follows, then cc_rounds, cc_prounds, cc_magsize and cc_flags, four bytes each.
        self.loaded = mutex + 8
        self.stride = 64  # UMEM_CPU_CACHE_SIZE, a power of two
        while self.stride < self.loaded + 2 * word + 16:
            self.stride *= 2

    def cpu(self, number: int) -> int:
        """Offset of cache_cpu[number]."""
        return self.cpus + number * self.stride


def measure_cache(memory: Memory, name: int) -> Optional[CacheLayout]:
    """The layout of the library whose umem_null_cache has its name at `name`, or None.
    cache_freelist points to cache_nullslab behind it, a slab of this cache with a count of -1."""
    word = memory.size
    cache = name - 8 * len(STATISTICS)
    base = cache + CacheLayout(word, 0).lock
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
    """How many counters precede the name in a library with another number of them; the rest of the
    cache must have the layout here. 0 where there is no ring of caches."""
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


class ArenaLayout:
    """Offsets in vmem_t, measured from vm_freelist; `seg`: bytes of a vmem_seg_t with its stack."""

    def __init__(self, word: int, freelist: int, seg: int) -> None:
        self.word = word
        self.freelist = freelist
        self.seg = seg
        self.hash0 = freelist - (HASH_INITIAL + QCACHES) * word
        self.seg0 = self.hash0 - 2 * seg  # vm_rotor follows
        # vm_quantum, qcache_max, source_alloc, source_free, source, next, nsegfree, segfree,
        # hash_table, hash_mask, hash_shift, freemap: a word each
        self.quantum = self.seg0 - 12 * word
        # vk_mem_inuse, import, total; the 32 bits of source_id; then alloc, free, wait and fail
        self.kstat = freelist + (8 * word + 1) * 4 * word
        self.kstat_alloc = self.kstat + 24 + word
        self.size = self.kstat + 13 * 8 + word


def measure_arena(memory: Memory, arena: int) -> Optional[ArenaLayout]:
    """The layout of the vmem_t at `arena`, or None. The heads of its free lists have a start of 0,
    and the powers of two as their ends."""
    word = memory.size
    for count in (640, 480, 400):  # as much as can be read: a static arena may end its segment
        words = memory.words(arena, count)
        if words is not None:
            break
    else:
        return None
    bits = 8 * word
    for at in range((QCACHES + HASH_INITIAL), len(words) - 4 * bits):
        if all(words[at + 4 * i : at + 4 * i + 2] == (0, 1 << i) for i in range(bits)):
            return _segments(memory, arena, at * word)
    return None


def _segments(memory: Memory, arena: int, freelist: int) -> Optional[ArenaLayout]:
    """The layout with the size of a segment: vm_seg0 is a SPAN, the segment behind a ROTOR."""
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
