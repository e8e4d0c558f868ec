"""Structures of Google's tcmalloc (github.com/google/tcmalloc, 2025), 64-bit. Sizes are in
bytes."""

from __future__ import annotations

from dataclasses import dataclass

from findleaks.allocators.record import Record
from findleaks.allocators.tcmallocs.page_map import WORD, PageMapLayout

HUGE_PAGE = 2 << 20

# span.h, Span. `counts` has embed_count (16 bits), freelist (16), allocated (16), cache_size (4),
# nonempty_index (4) and is_donated (1). `pages` has 6 bits if the span is neither large nor
# sampled. Then follow 8 cached indices or a bitmap of 128 bits or, if the span is sampled, the
# address of the SampledAllocation.
_SPAN = Record("Q next, Q prev, Q counts, Q first_page, Q pages, 2Q bitmap sample, Q time")
SPAN = _SPAN.size
SPAN_WORDS = SPAN // WORD
COUNTS, FIRST_PAGE, PAGES, BITMAP, SAMPLE = (_SPAN[name] // WORD for name in ("counts", "first_page", "pages", "bitmap", "sample"))
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

# central_freelist.h, CentralFreeList. Words follow a lock.
SIZE_CLASS, OBJECT_SIZE, COUNTER, REQUESTED, RETURNED, LISTS = 8, 16, 56, 64, 72, 208
CENTRAL = 424
NUM_LISTS = 8

# transfer_cache_internals.h, TransferCache: used and capacity in one word, slots, the central list.
TRANSFER = 576
SLOT_INFO, SLOTS, FREELIST = 24, 32, 40
# transfer_cache.h, ShardedTransferCacheManagerBase: shards, their number, the number of active
# ones, and a bool for each class. A Shard has caches (in which an int replaces the central list), a
# once_flag, and initialized.
SHARD = 16
SHARD_TRANSFER = 128

# cpu_cache.h, internal/percpu_tcmalloc.h: CpuCache begins with TcmallocSlab, which is slabs and
# shift in one word, stopped, and begins.
CPU_CACHE = 1024
HEADER = 4
SHIFTS = range(10, 24)

# thread_cache.h, ThreadCache: lists by class {head, length, lowater, max_length, overages}, then
# size, max_size, tid, in_setspecific, next, prev.
LIST = 24
LIST_LENGTH, LIST_MOST = 8, 16


@dataclass(frozen=True)
class Layout(PageMapLayout):
    """A build with pages of 1 << `shift` bytes.

    `base` is the number of size classes (common.h, kNumBaseClasses). Each of the `partitions` NUMA
    nodes has this number of classes, and if `expanded` is set, cold memory has, too. `levels` is
    the height of the page map. If `transfer`, the central lists have transfer caches."""

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
        """The size of a CompactSizeClass."""
        return 1 if self.classes <= 256 else 2

    # sizemap.h, SizeMap: class_array_, num_objects_to_move_, class_to_pages_ (bytes),
    # class_to_size_ (32 bits), cold_sizes_, and their number.

    @property
    def array(self) -> int:
        return (((self.most_small + 127 + (120 << 7)) >> 7) + 1) * (1 + self.expanded) * self.compact

    @property
    def sizes_at(self) -> int:
        """The offset of class_to_size_ in the SizeMap."""
        return (self.array + 2 * self.classes + 3) & -4

    @property
    def pages_at(self) -> int:
        return self.array + self.classes

    @property
    def size_map(self) -> int:
        return ((self.sizes_at + 4 * self.classes + 7) & -8) + WORD * (self.base + 1)

    # pagemap.h: PageMap2 (with leaves of 2^15 pages) and PageMap3.

    @property
    def leaf_bits(self) -> int:
        return 15 if self.levels == 2 else super().leaf_bits

    @property
    def spans_at(self) -> int:
        """The offset of span_and_sizeclass in a leaf, which follows the size classes."""
        return self.compact << self.leaf_bits

    @property
    def leaf(self) -> int:
        """The size of a leaf, including its words about huge pages of 2 MiB."""
        return self.spans_at + (WORD << self.leaf_bits) + (WORD << max(self.leaf_bits + self.shift - 21, 0))

    @property
    def reach(self) -> int:
        """The bytes of addresses that a leaf covers."""
        return 1 << (self.leaf_bits + self.shift)

    # transfer_cache.h, TransferCacheManager: for each class a transfer cache with its central list,
    # or only a central list.

    @property
    def stride(self) -> int:
        return TRANSFER if self.transfer else CENTRAL

    @property
    def central_at(self) -> int:
        return FREELIST if self.transfer else 0

    # span.h: bit-fields, of which one of 32 bits does not cross a multiple of 32 bits.

    @property
    def large_bit(self) -> int:
        return max(self.page_bits, 32) + RESERVED_BITS

    @property
    def least_bitmap(self) -> int:
        """The block size from which spans have a bitmap (Span::UseBitmapForSize)."""
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
        """The value of begins_[1] in words: the number of words of the headers and a mark."""
        return (self.classes * HEADER + WORD - 1) // WORD + 1


# The usual pages, TCMALLOC_INTERNAL_32K_PAGES and …_256K_PAGES.
_PAGES = ((13, 86), (15, 78), (18, 89))
LAYOUTS = (
    # TCMALLOC_INTERNAL_NUMA_AWARE must be tried first, because its first fields also fit a build
    # without it.
    *(Layout(shift, base, 2) for shift, base in _PAGES),
    *(Layout(shift, base) for shift, base in _PAGES),
    Layout(12, 46, 1, False, 3, False),  # TCMALLOC_INTERNAL_SMALL_BUT_SLOW
)
