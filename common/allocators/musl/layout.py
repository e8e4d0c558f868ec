"""Layouts of musl's two mallocs.

mallocng: src/malloc/mallocng/meta.h, malloc.c and glue.h of musl 1.2.1 to 1.2.6, all alike.
oldmalloc: src/malloc/malloc.c and src/internal/malloc_impl.h of 0.9 to 1.2.0, src/malloc/oldmalloc/
since (--with-malloc=oldmalloc)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.allocators.memory import Memory

AREA = 4096  # bytes of a meta_area, whatever the page size; also its alignment and maplen's unit
CLASSES = (  # units of one slot, by size class (size_classes)
    *(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 31, 36, 42, 50, 63, 72, 84, 102, 127),
    *(146, 170, 204, 255, 292, 340, 409, 511, 584, 682, 818, 1023, 1169, 1364, 1637, 2047, 2340, 2730, 3276, 4095),
    *(4680, 5460, 6552, 8191),
)
FREED = 0xFF  # the byte of index and reserve of a freed block


class Meta:
    """struct meta and struct meta_area for a word size. Masks are two ints; the last word has
    last_idx (5 bits), freeable, sizeclass (6 bits) and maplen."""

    def __init__(self, word: int) -> None:
        self.word = word

    @property
    def size(self) -> int:
        return 4 * self.word + 8

    @property
    def first(self) -> int:
        """Offset of the first meta of an area: a 64-bit check, `next`, and the int nslots."""
        return 8 + 2 * self.word

    @property
    def count(self) -> int:
        """Metas in an area."""
        return (AREA - self.first) // self.size

    def bits(self, word: int, byteorder: str) -> int:
        """A last word as little-endian compilers lay it out; others begin with the highest bit."""
        if byteorder == "little":
            return word
        pages = 8 * self.word - 12
        first = word >> pages
        return first >> 7 | (first >> 6 & 1) << 5 | (first & 63) << 6 | (word & (1 << pages) - 1) << 12


class Context(NamedTuple):
    """Offsets in struct malloc_context."""

    paged: bool  # it holds the page size, where PAGESIZE is not a constant (not on x86)
    init_done: int
    free_meta_head: int
    area_head: int  # meta_area_head, which meta_area_tail follows
    active: int
    usage: int  # usage_by_class
    size: int  # up to the end of `brk`, which follows unmap_seq, bounces and seq


def contexts(word: int) -> tuple[Context, Context]:
    """The possible layouts, likelier first."""
    return _context(word, False), _context(word, True)


def _context(word: int, paged: bool) -> Context:
    init_done = 8 + word * paged
    free_meta_head = init_done + 8
    area_head = free_meta_head + 5 * word
    active = area_head + 3 * word
    usage = active + 48 * word
    unmap_seq = usage + 48 * word
    size = (unmap_seq + 65 + word - 1) // word * word + word
    return Context(paged, init_done, free_meta_head, area_head, active, usage, size)


class Old:
    """oldmalloc's `mal` and its chunks. A bin is a lock of two ints, head and tail; an empty one
    that was used points to itself, as if it were inside a chunk. A chunk begins with psize and
    csize (bit 0: in use), and the user's memory follows."""

    def __init__(self, word: int, bins: int = 64) -> None:
        self.word, self.bins = word, bins

    @property
    def align(self) -> int:
        """SIZE_ALIGN: sizes are multiples of it."""
        return 4 * self.word

    @property
    def overhead(self) -> int:
        """Bytes of a chunk that its user does not get."""
        return 2 * self.word

    @property
    def bin(self) -> int:
        return 8 + 2 * self.word

    @property
    def size(self) -> int:
        """Bytes of binmap (64 bits), the bins, and a lock of two ints."""
        return 8 + self.bins * self.bin + 8


_TABLE = (
    *(32, 33, 34, 35, 36, 36, 37, 37, 38, 38, 39, 39, 40, 40, 40, 40, 41, 41, 41, 41, 42, 42, 42, 42, 43, 43, 43, 43),
    *(*[44] * 8, *[45] * 8, *[46] * 8, *[47] * 8),
)


def bin_of(size: int, align: int) -> int:
    """The bin for free chunks of this size (bin_index)."""
    units = size // align - 1
    if units <= 32:
        return max(units, 0)
    if units < 512:
        return _TABLE[units // 8 - 4]
    return 63 if units > 0x1C00 else _TABLE[units // 128 - 4] + 16


def head_of(number: int, byteorder: str) -> int:
    """The four bytes before a slot as a little-endian number, of the target's: two bytes, then the
    offset in 16 bits."""
    return number if byteorder == "little" else number >> 24 | (number >> 8 & 0xFF00) | (number & 0xFFFF) << 16


class LocatedContext(NamedTuple):
    """A context's place and layout."""

    where: str  # its file
    address: int
    layout: Context
    secret: int  # that the areas in its list begin with


def number64(memory: Memory, address: int) -> int:
    """A 64-bit number, whatever the word size; 0 if absent."""
    words = memory.words(address, 8 // memory.size)
    if words is None or len(words) == 1:
        return words[0] if words else 0
    low, high = words if memory.arch.byteorder == "little" else words[::-1]
    return low | high << 32


class Mal(NamedTuple):
    """The address of `mal`: binmap, then the bins."""

    where: str
    address: int
    layout: Old

    def bin(self, number: int) -> int:
        """The chunk address that the ends of a bin's list point to (BIN_TO_CHUNK): the bin's head
        and tail are this chunk's next and prev."""
        return self.address + 8 + number * self.layout.bin + 8 - self.layout.overhead
