"""Structures of gperftools' tcmalloc, 64-bit; offsets and sizes are bytes. From 2.7 to 2.18 only
ThreadCache's links changed."""

from __future__ import annotations

from dataclasses import dataclass

from findleaks.allocators.tcmallocs.page_map import ADDRESS_BITS, WORD, PageMapLayout
from findleaks.target.arch import AARCH64, X86_64, Arch

CLASSES = 128  # common.h, kClassSizesMax
MAX_SMALL = 256 << 10  # common.h, kMaxSize: the largest size class

# common.h, SizeMap: class_array_, num_objects_to_move_, class_to_size_ (both int32 of CLASSES),
# class_to_pages_ (size_t of CLASSES).
MOVES = -4 * CLASSES  # from class_to_size_
PAGES = 4 * CLASSES


def pages_table(table: int) -> int:
    """Address of class_to_pages_, an array of words behind class_to_size_."""
    return table + PAGES + WORD - 1 & -WORD


MAP_START = MOVES - 2172  # class_array_, rounded up to an int
MAP_END = PAGES + WORD * CLASSES + 3 * WORD

# span.h, Span: start, length (pages), next, prev, objects; then bits: refcount 16, sizeclass 8,
# location 2, sample 1, has_span_iter 1.
SPAN = 48
SPAN_WORDS = SPAN // WORD
NEXT, PREV, OBJECTS = 16, 24, 32
IN_USE, NORMAL, RETURNED = range(3)  # location

# central_freelist.h, CentralFreeList (a multiple of 64 bytes): lock, size_class, empty, nonempty,
# num_spans, counter, slots of two words.
SIZE_CLASS, EMPTY, NONEMPTY = 8, 16, 16 + SPAN
NUM_SPANS = NONEMPTY + SPAN
COUNTER = NUM_SPANS + WORD
SLOTS = COUNTER + WORD

# thread_cache.h, ThreadCache: CLASSES lists {head, length, lowater, max_length, length_overages,
# size}, then size_, max_size_, sampler.
LIST = 32
LIST_LENGTH, LIST_SIZE = 8, 24
CACHE_SIZE = CLASSES * LIST
CACHE = 4160
RELEASES = ("2.16 and later", "2.7-2.15")
# Offsets of next_, which prev_ follows, by release: right behind the sampler, or also behind tid_
# and in_setspecific_.
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

# common.h, StackTrace: size, depth, and 31 frames, of which unused ones have older contents
STACK = 33 * WORD


@dataclass(frozen=True)
class Layout(PageMapLayout):
    """A build with pages of 1 << `shift` bytes. `levels` of the page map (pagemap.h) and `slots` of
    a transfer cache: 2 and 64; 3 and 0 with TCMALLOC_SMALL_BUT_SLOW; 3 and 64 where addresses have
    64 bits, as common.h assumes but for x86-64 and AArch64."""

    shift: int
    levels: int
    slots: int
    address_bits: int = ADDRESS_BITS
    classes = CLASSES

    @property
    def cached_pages(self) -> int:
        """Bytes of pagemap_cache_, in front of the page map (packed-cache-inl.h)."""
        return WORD << (16 if self.slots else 12)

    @property
    def lists(self) -> int:
        """Offset of free_ from the page map's root; in between are the root, the map's allocator,
        and two std::set of large spans."""
        return (WORD << self.root_bits) + WORD + 2 * 48

    @property
    def most_pages(self) -> int:
        """kMaxPages: the number of pairs of lists of free spans."""
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
        """Bytes of a CentralFreeList."""
        return (self.used_slots + 12 + 63) // 64 * 64


SHIFTS = (13, 15, 16, 12, 14, 18)  # 8 KB; --with-tcmalloc-pagesize=32, 64, 4, 16, 256
BUILDS = ((2, 64, ADDRESS_BITS), (3, 0, ADDRESS_BITS), (3, 64, 64))
LAYOUTS = tuple(Layout(shift, *build) for build in BUILDS for shift in SHIFTS)


def layouts_of(arch: Arch) -> list[Layout]:
    """Those of a machine. Of another one's, parts of the page map may look right by chance."""
    bits = ADDRESS_BITS if arch.name in (X86_64.name, AARCH64.name) else 64
    return [layout for layout in LAYOUTS if layout.address_bits == bits]
