"""Structures of gperftools' tcmalloc, 64-bit. Offsets and sizes are in bytes.

Between 2.7 and 2.18, only the position of the links in ThreadCache changed."""

from __future__ import annotations

from dataclasses import dataclass

from findleaks.allocators.record import Record
from findleaks.allocators.tcmallocs.page_map import ADDRESS_BITS, WORD, PageMapLayout
from findleaks.target.arch import AARCH64, X86_64, Arch

CLASSES = 128  # common.h, kClassSizesMax
MAX_SMALL = 256 << 10  # common.h, kMaxSize: the largest size class

# common.h, SizeMap: class_array_, then num_objects_to_move_ and class_to_size_ (both int32), then
# class_to_pages_ (size_t). Offsets are from class_to_size_.
MOVES = -4 * CLASSES
PAGES = 4 * CLASSES


def pages_table(table: int) -> int:
    """Return the address of class_to_pages_, an array of words behind class_to_size_ at `table`."""
    return table + PAGES + WORD - 1 & -WORD


MAP_START = MOVES - 2172  # class_array_, rounded up to an int
MAP_END = PAGES + WORD * CLASSES + 3 * WORD

# span.h, Span. The last word has refcount (16 bits), sizeclass (8), location (2), sample (1) and
# has_span_iter (1).
_SPAN = Record("Q start, Q length, Q next, Q prev, Q objects, Q bits")
SPAN = _SPAN.size
SPAN_WORDS = SPAN // WORD
NEXT, PREV, OBJECTS = _SPAN["next"], _SPAN["prev"], _SPAN["objects"]
IN_USE, NORMAL, RETURNED = range(3)  # values of location

# central_freelist.h, CentralFreeList, whose size is a multiple of 64 bytes. A slot has two words.
_CENTRAL = Record(f"Q lock, Q size_class, {SPAN_WORDS}Q empty, {SPAN_WORDS}Q nonempty, Q num_spans, Q counter, 2Q slots")
SIZE_CLASS, EMPTY, NONEMPTY = _CENTRAL["size_class"], _CENTRAL["empty"], _CENTRAL["nonempty"]
NUM_SPANS, COUNTER, SLOTS = _CENTRAL["num_spans"], _CENTRAL["counter"], _CENTRAL["slots"]

# thread_cache.h, ThreadCache: CLASSES lists, then size_, max_size_ and a sampler.
_LIST = Record("Q head, I length, I lowater, I max_length, I length_overages, Q size")
LIST, LIST_LENGTH, LIST_SIZE = _LIST.size, _LIST["length"], _LIST["size"]
CACHE_SIZE = CLASSES * LIST  # offset of size_
CACHE = 4160
RELEASES = ("2.16 and later", "2.7-2.15")
# Offsets of next_, which prev_ follows, by release: right after the sampler, or after tid_ and
# in_setspecific_, which follow the sampler.
CACHE_LINKS = tuple(zip((4128, 4144), RELEASES))

PAGE_HEAP_STATS = (  # page_heap.h, PageHeap::Stats
    "system_bytes",
    "free_bytes",
    "unmapped_bytes",
    "committed_bytes",
    "scavenge_count",
    "commit_count",
    "total_commit_bytes",
    "decommit_count",
    "total_decommit_bytes",
    "reserve_count",
    "total_reserve_bytes",
)

# debugallocation.cc, MallocBlock: size1_, offset_, magic1_, alloc_type_
HEADER, DEBUG_MAGIC = 32, 0xDEADBEEF

# common.h, StackTrace: size, depth, and 31 frames, of which the unused ones may be stale
STACK = 33 * WORD


@dataclass(frozen=True)
class Layout(PageMapLayout):
    """A build with pages of 1 << `shift` bytes.

    The usual build has 2 `levels` of the page map (pagemap.h) and 64 `slots` of a transfer cache.
    With TCMALLOC_SMALL_BUT_SLOW it has 3 and 0. On machines other than x86-64 and AArch64, common.h
    assumes addresses of 64 bits, and the build has 3 and 64."""

    shift: int
    levels: int
    slots: int
    address_bits: int = ADDRESS_BITS
    classes = CLASSES

    @property
    def cached_pages(self) -> int:
        """The size of pagemap_cache_, which precedes the page map (packed-cache-inl.h)."""
        return WORD << (16 if self.slots else 12)

    @property
    def lists(self) -> int:
        """The distance from the page map's root to free_. Between them are the rest of the root,
        the map's allocator, and two std::set of large spans."""
        return (WORD << self.root_bits) + WORD + 2 * 48

    @property
    def most_pages(self) -> int:
        """kMaxPages: the number of pairs of lists of free spans, one pair for each length."""
        return 1 << max(20 - self.shift, 0)

    @property
    def stats(self) -> int:
        return self.lists + self.most_pages * 2 * SPAN

    @property
    def heap_end(self) -> int:
        return self.stats + WORD * (len(PAGE_HEAP_STATS) + 2)

    @property
    def used_slots(self) -> int:
        return SLOTS + 2 * WORD * self.slots

    @property
    def stride(self) -> int:
        """The size of a CentralFreeList."""
        return (self.used_slots + 12 + 63) // 64 * 64


SHIFTS = (13, 15, 16, 12, 14, 18)  # 8 KB; --with-tcmalloc-pagesize=32, 64, 4, 16, 256
BUILDS = ((2, 64, ADDRESS_BITS), (3, 0, ADDRESS_BITS), (3, 64, 64))
LAYOUTS = tuple(Layout(shift, *build) for build in BUILDS for shift in SHIFTS)


def layouts_of(arch: Arch) -> list[Layout]:
    """Return the layouts of a machine. Layouts of other machines are not tried, because parts of
    the page map may fit them by chance."""
    bits = ADDRESS_BITS if arch.name in (X86_64.name, AARCH64.name) else 64
    return [layout for layout in LAYOUTS if layout.address_bits == bits]
