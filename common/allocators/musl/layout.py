"""Layouts of musl's two mallocs. Offsets and sizes are in bytes.

mallocng: src/malloc/mallocng/meta.h, malloc.c and glue.h of musl 1.2.1 to 1.2.6, which have the
same layout. oldmalloc: src/malloc/malloc.c and src/internal/malloc_impl.h of 0.9 to 1.2.0,
src/malloc/oldmalloc/ since (--with-malloc=oldmalloc)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from findleaks.allocators.record import Record
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.allocators.memory import Memory

AREA = 4096  # size and alignment of a meta_area with any page size; also the unit of maplen
CLASSES = (  # units of a slot by size class (size_classes)
    *(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 31, 36, 42, 50, 63, 72, 84, 102, 127),
    *(146, 170, 204, 255, 292, 340, 409, 511, 584, 682, 818, 1023, 1169, 1364, 1637, 2047, 2340, 2730, 3276, 4095),
    *(4680, 5460, 6552, 8191),
)
FREED = 0xFF  # the byte of index and reserve of a freed block


class Meta:
    """struct meta and struct meta_area by word size. The last word of a meta contains last_idx (5
    bits), freeable, sizeclass (6 bits) and maplen."""

    def __init__(self, word: int) -> None:
        self.word = word
        self.size = Record("W prev, W next, W mem, i avail_mask, i freed_mask, W bits", word).size
        self.first = Record("Q check, W next, i nslots, W slots", word)["slots"]  # the first meta
        self.count = (AREA - self.first) // self.size  # metas in an area

    def bits(self, word: int, byteorder: str) -> int:
        """Convert the last word of a meta to the bit order of little-endian compilers. Compilers
        for big-endian machines put the first field into the highest bits."""
        if byteorder == "little":
            return word
        pages = 8 * self.word - 12
        first = word >> pages
        return first >> 7 | (first >> 6 & 1) << 5 | (first & 63) << 6 | (word & (1 << pages) - 1) << 12


class Context(NamedTuple):
    """Offsets in struct malloc_context."""

    paged: bool  # whether it has the page size, which is a constant on some machines (x86)
    init_done: int
    free_meta_head: int
    area_head: int  # meta_area_head; meta_area_tail follows
    active: int
    usage: int  # usage_by_class
    size: int  # up to the end of `brk`


def contexts(word: int) -> tuple[Context, Context]:
    """Return the possible layouts, the likelier one first."""
    return _context(word, False), _context(word, True)


def _context(word: int, paged: bool) -> Context:
    sizes = "W avail_meta_count, W avail_meta_area_count, W meta_alloc_shift"
    areas = "W meta_area_head, W meta_area_tail, W avail_meta_areas"
    classes = f"{len(CLASSES)}W active, {len(CLASSES)}W usage_by_class, 32B unmap_seq, 32B bounces, B seq, W brk"
    start = f"Q secret, {'W pagesize, ' if paged else ''}i init_done, I mmap_counter, W free_meta_head, W avail_meta"
    context = Record(f"{start}, {sizes}, {areas}, {classes}", word)
    return Context(
        paged,
        init_done=context["init_done"],
        free_meta_head=context["free_meta_head"],
        area_head=context["meta_area_head"],
        active=context["active"],
        usage=context["usage_by_class"],
        size=context.size,
    )


class Old:
    """oldmalloc's `mal` and its chunks.

    A bin is a lock of two ints, a head and a tail. The head and tail of an empty bin point to the
    bin itself, as if it were part of a chunk. They are 0 if the bin was never used. A chunk begins
    with psize and csize (bit 0: in use), which the user's memory follows."""

    def __init__(self, word: int, bins: int = 64) -> None:
        self.word, self.bins = word, bins

    @property
    def align(self) -> int:
        """SIZE_ALIGN: sizes are multiples of it."""
        return 4 * self.word

    @property
    def overhead(self) -> int:
        """The bytes of a chunk that its user does not get."""
        return 2 * self.word

    @property
    def bin(self) -> int:
        return 8 + 2 * self.word

    @property
    def size(self) -> int:
        """The bytes of binmap (64 bits), the bins, and a lock of two ints."""
        return 8 + self.bins * self.bin + 8


_TABLE = (
    *(32, 33, 34, 35, 36, 36, 37, 37, 38, 38, 39, 39, 40, 40, 40, 40, 41, 41, 41, 41, 42, 42, 42, 42, 43, 43, 43, 43),
    *(*[44] * 8, *[45] * 8, *[46] * 8, *[47] * 8),
)


def bin_of(size: int, align: int) -> int:
    """Return the number of the bin for free chunks of this size (bin_index)."""
    units = size // align - 1
    if units <= 32:
        return max(units, 0)
    if units < 512:
        return _TABLE[units // 8 - 4]
    return 63 if units > 0x1C00 else _TABLE[units // 128 - 4] + 16


def head_of(number: int, byteorder: str) -> int:
    """Convert the four bytes before a slot, read in the target's byte order, to a little-endian
    number: two bytes, then the offset in 16 bits."""
    return number if byteorder == "little" else number >> 24 | (number >> 8 & 0xFF00) | (number & 0xFFFF) << 16


class LocatedContext(NamedTuple):
    """The address and layout of a context."""

    where: str  # the base name of its file
    address: int
    layout: Context
    secret: int  # the first word of the areas in its list


def number64(memory: Memory, address: int) -> int:
    """Read a 64-bit number with any word size; 0 if it is unreadable."""
    words = memory.words(address, 8 // memory.size)
    if words is None or len(words) == 1:
        return words[0] if words else 0
    low, high = words if memory.arch.byteorder == "little" else words[::-1]
    return low | high << 32


class Mal(NamedTuple):
    """`mal` in a process: its address and layout. `mal` consists of binmap and the bins."""

    where: str
    address: int
    layout: Old

    def bin(self, number: int) -> int:
        """Return the address to which both ends of a bin's list point (BIN_TO_CHUNK). If a chunk
        were at this address, its `next` and `prev` would be the bin's head and tail."""
        return self.address + 8 + number * self.layout.bin + 8 - self.layout.overhead
