"""Structures of Google's tcmalloc (github.com/google/tcmalloc, 2025), 64-bit, in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from findleaks.allocators.tcmallocs.page_map import WORD, PageMapLayout

HUGE_PAGE = 2 << 20

# span.h, Span: list links; bits: embed_count 16, freelist 16, allocated 16, cache_size 4,
# nonempty_index 4, is_donated 1; first_page and flags; pages (6 bits if neither large nor sampled);
# then 8 cached indices, a bitmap of 128 bits or, if sampled, the SampledAllocation; the time.
SPAN = 64
SPAN_WORDS = SPAN // WORD
COUNTS, FIRST_PAGE, PAGES, BITMAP, SAMPLE = 2, 3, 4, 5, 5  # in words
RESERVED_BITS = 26
SMALL_PAGES = (1 << 6) - 1
BITMAP_BITS = 128
CACHED_INDICES = 8
LIST_END = 0xFFFF
UNIT = 8  # kAlignment: bytes in a unit of an index

# internal/sampled_allocation.h and logging.h, StackTrace in SampledAllocation.
SAMPLED = 104
PROXY, ALLOCATED_SIZE, GUARDED_STATUS = 32, 56, 92
REQUESTED_SIZE, WEIGHT, SPAN_START, DEPTH, STACK = 40, 72, 96, 104, 112
DEEPEST = 64  # kMaxStackDepth
STACK_TRACE = STACK + DEEPEST * WORD  # all of a SampledAllocation
GUARDED = 10  # Profile::Sample::GuardedStatus::Guarded

# central_freelist.h, CentralFreeList: lock, then words.
SIZE_CLASS, OBJECT_SIZE, COUNTER, REQUESTED, RETURNED, LISTS = 8, 16, 56, 64, 72, 208
CENTRAL = 424
NUM_LISTS = 8

# transfer_cache_internals.h, TransferCache: used and capacity in one word, slots, the central list.
TRANSFER = 576
SLOT_INFO, SLOTS, FREELIST = 24, 32, 40
# transfer_cache.h, ShardedTransferCacheManagerBase: shards, their number, those active, a bool a
# class; Shard: caches (whose central list is an int), a once_flag, initialized.
SHARD = 16
SHARD_TRANSFER = 128

# cpu_cache.h, internal/percpu_tcmalloc.h: CpuCache begins with TcmallocSlab: slabs and shift in a
# word, stopped, begins.
CPU_CACHE = 1024
HEADER = 4
SHIFTS = range(10, 24)

# thread_cache.h, ThreadCache: lists by class {head, length, lowater, max_length, overages}; size,
# max_size, tid, in_setspecific, next, prev.
LIST = 24
LIST_LENGTH, LIST_MOST = 8, 16


@dataclass(frozen=True)
class Layout(PageMapLayout):
    """A build: pages of 1 << `shift` bytes, `base` size classes (common.h, kNumBaseClasses), again
    for each of `partitions` NUMA nodes and, if `expanded`, for cold memory. `levels`: of the page
    map. `transfer`: the central lists have transfer caches."""

    shift: int
    base: int
    partitions: int = 1
    expanded: bool = True
    levels: int = 2
    transfer: bool = True

    @property
    def classes(self) -> int:
        return self.base * (self.partitions + self.expanded)

    @property
    def most_small(self) -> int:
        """kMaxSize: the largest size class."""
        return 256 << 10 if self.transfer else 8 << 10

    @property
    def compact(self) -> int:
        """Bytes of a CompactSizeClass."""
        return 1 if self.classes <= 256 else 2

    # sizemap.h, SizeMap: class_array_, num_objects_to_move_, class_to_pages_ (bytes),
    # class_to_size_ (32 bits), cold_sizes_, their number.

    @property
    def array(self) -> int:
        return (((self.most_small + 127 + (120 << 7)) >> 7) + 1) * (1 + self.expanded) * self.compact

    @property
    def sizes_at(self) -> int:
        """Offset of class_to_size_ in the SizeMap."""
        return (self.array + 2 * self.classes + 3) & -4

    @property
    def pages_at(self) -> int:
        return self.array + self.classes

    @property
    def size_map(self) -> int:
        return ((self.sizes_at + 4 * self.classes + 7) & -8) + WORD * (self.base + 1)

    # pagemap.h, PageMap2 (leaves of 2^15 pages) and PageMap3.

    @property
    def leaf_bits(self) -> int:
        return 15 if self.levels == 2 else super().leaf_bits

    @property
    def spans_at(self) -> int:
        """Offset of span_and_sizeclass in a leaf, behind the size classes."""
        return self.compact << self.leaf_bits

    @property
    def leaf(self) -> int:
        """Bytes of a leaf with its words about huge pages of 2 MiB."""
        return self.spans_at + (WORD << self.leaf_bits) + (WORD << max(self.leaf_bits + self.shift - 21, 0))

    @property
    def reach(self) -> int:
        """Bytes of address space that a leaf covers."""
        return 1 << (self.leaf_bits + self.shift)

    # transfer_cache.h, TransferCacheManager: a transfer cache with its central list a class, or
    # only a central list.

    @property
    def stride(self) -> int:
        return TRANSFER if self.transfer else CENTRAL

    @property
    def central_at(self) -> int:
        return FREELIST if self.transfer else 0

    # span.h: bit-fields; a 32-bit one does not cross a multiple of 32 bits.

    @property
    def large_bit(self) -> int:
        return max(self.page_bits, 32) + RESERVED_BITS

    @property
    def least_bitmap(self) -> int:
        """Block size from which spans have a bitmap, in bytes (Span::UseBitmapForSize)."""
        return self.page // BITMAP_BITS

    # thread_cache.h

    @property
    def cache_links(self) -> int:
        return self.classes * LIST + 4 * WORD

    @property
    def thread_cache(self) -> int:
        return self.cache_links + 2 * WORD

    # internal/percpu_tcmalloc.h

    @property
    def first_begin(self) -> int:
        """The value of begins_[1] in words: behind the headers, and a mark."""
        return (self.classes * HEADER + WORD - 1) // WORD + 1


# the usual pages; TCMALLOC_INTERNAL_32K_PAGES, …_256K_PAGES
_PAGES = ((13, 86), (15, 78), (18, 89))
LAYOUTS = (
    # TCMALLOC_INTERNAL_NUMA_AWARE; first, because a build without it has what these begin with.
    *(Layout(shift, base, 2) for shift, base in _PAGES),
    *(Layout(shift, base) for shift, base in _PAGES),
    Layout(12, 46, 1, False, 3, False),  # TCMALLOC_INTERNAL_SMALL_BUT_SLOW
)
