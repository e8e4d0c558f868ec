"""Find the memory that the collector reserves beside the Java heap: card tables, mark bitmaps and
similar tables.

The size of each table is a fixed part of the size of the heap. libjvm's tables describe only the
card table. The others are found by structure: G1's manager of regions refers to objects that
begin with the bounds of such a table, and Parallel's static variables refer to PSVirtualSpaces.
A range is returned only if its size, or several fields, confirm it.

Sources, OpenJDK 8 to 25, src/hotspot/share/gc: g1/g1RegionToSpaceMapper.hpp (from the second word,
a listener and a G1PageBasedVirtualSpace, which begins with its bounds), g1/heapRegionManager.hpp
(the order of the mappers), g1/g1ConcurrentMark.hpp (G1CMMarkStack: chunks of 8 KiB), shared/
cardTable.hpp (cards of 512 bytes), shared/markBitMap.hpp (one bit for each 8 bytes),
parallel/psVirtualspace.hpp, parallel/parMarkBitMap.hpp. JDK 11: z/zGlobals.hpp
(ZMarkStackSpaceStart, ZMarkStackSpaceSize) and z/zGlobals_linux_x86.hpp (ZAddressSpaceSize)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from findleaks.runtimes.jvm.concurrent import read_mask, zgc_prefix
from findleaks.runtimes.jvm.spaces import heap_addresses, region_addresses
from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.jvm.virtual_spaces import list_static_pointers
from findleaks.runtimes.jvm.zgc_jdk11 import is_jdk11
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges, region_at

_PAGES = (4096, 2 << 20)  # sizes are multiples of one of these
_CARD, _BITMAP = 512, 64  # bytes of the heap for each byte of a table of cards, and of a bitmap
_CARD_TABLE, _BITMAP_NAME = "card table", "mark bitmap"
_MANAGER, _MAPPER, _HEAP = 64, 16, 512  # words that are read of these structures
_MARK_CHUNK = 8192  # bytes of a chunk of G1's mark stack
_STACK_FIELDS, _MOST_BUCKETS = 6, 32
# ZGC of JDK 11 reserves an address range of four times the maximum heap size. Its mark stacks begin
# 1 TiB after this range, in a range of 1 TiB.
_JDK11_PARTS, _JDK11_MARK_STACKS = 4, 1 << 40
_LEAST_CHUNKS, _MOST_CHUNKS = 128, 1 << 24  # numbers of chunks of a plausible mark stack


class CollectorTable(NamedTuple):
    """A table of the collector: its reserved addresses, which may be committed only in part."""

    name: str
    addresses: Range


def list_collector_tables(tables: Tables) -> Sequence[CollectorTable]:
    """Return the tables that were recognised, ascending and disjoint."""
    if is_jdk11(tables) and zgc_prefix(tables):
        start = tables.constants.get("ZAddressSpaceStart", 0) + _JDK11_PARTS * (read_mask(tables, "Z", "AddressOffsetMask") + 1)
        return (CollectorTable("mark stacks", Range(start + _JDK11_MARK_STACKS, start + 2 * _JDK11_MARK_STACKS)),)
    heap, whole = tables.word("Universe", "_collectedHeap"), heap_addresses(tables)
    if not heap or whole is None or whole.start >= whole.end:
        return ()
    readable = merge_ranges(Range(one.start, one.end) for one in tables.target.regions() if one.readable)
    # Several structures may refer to the same table. The name from libjvm's tables is certain.
    found = [*_list_cards(tables, heap, whole), *_list_mapped(tables, heap, whole)]
    found += [*_list_mark_stack(tables, heap, readable), *_list_parallel(tables, whole)]
    disjoint: list[CollectorTable] = []
    last = 0
    for one in sorted(found, key=lambda one: one.addresses):
        start, end = one.addresses
        if start >= last and not (start < whole.end and whole.start < end):
            disjoint.append(one)
            last = end
    return disjoint


def _list_cards(tables: Tables, heap: int, whole: Range) -> Iterator[CollectorTable]:
    """Yield the card table of Serial, Parallel, CMS or G1. In JDK 8, the barrier set is the card
    table itself."""
    barriers = tables.word("BarrierSet", "_barrier_set") or tables.word("CollectedHeap", "_barrier_set", heap) or 0
    kind, table = "CardTable", tables.word("CardTableBarrierSet", "_card_table", barriers) or 0
    if tables.is_jdk8:
        kind, table = "CardTableModRefBS", barriers
    base, size = (tables.word(kind, name, table) or 0 for name in ("_byte_map", "_byte_map_size"))
    least = (whole.end - whole.start) // _CARD
    if base and base % _PAGES[0] == 0 and least <= size <= least + _PAGES[1]:
        yield CollectorTable(_CARD_TABLE, Range(base, base + -(-size // _PAGES[0]) * _PAGES[0]))


def _list_mapped(tables: Tables, heap: int, whole: Range) -> Iterator[CollectorTable]:
    """Yield the tables of G1. In its manager of regions, the tables of cards have this order: the
    block offset table, the card table, and, until JDK 17, the counts of cards."""
    manager = tables.place("G1CollectedHeap", "_hrm", heap)
    if not region_addresses(tables):
        return
    names = iter(("block offset table", _CARD_TABLE, "card counts"))
    for mapper in _words(tables, manager, _MANAGER):
        for low, high in _pairs(_words(tables, mapper, _MAPPER)):
            if _fits(high - low, whole, _BITMAP):
                yield CollectorTable(_BITMAP_NAME, Range(low, high))
            elif _fits(high - low, whole, _CARD):
                yield CollectorTable(next(names, "table of cards"), Range(low, high))
            else:
                continue
            break


def _fits(size: int, whole: Range, part: int) -> bool:
    """Return whether a table of this size has one byte for each `part` bytes of the heap."""
    exact = (whole.end - whole.start) // part
    return any(size == -(-exact // page) * page for page in _PAGES)


def _list_mark_stack(tables: Tables, heap: int, readable: Sequence[Range]) -> Iterator[CollectorTable]:
    """Yield the parts of G1's mark stack, since JDK 11."""
    if tables.is_jdk8 or not region_addresses(tables):
        return
    for marking in _words(tables, heap, _HEAP):
        words = _words(tables, marking, _HEAP)
        for at in range(len(words) - _STACK_FIELDS):
            for base, count in _read_mark_stack(tables, words[at : at + _STACK_FIELDS]):
                end = base + count * _MARK_CHUNK
                around = region_at(readable, base) if base and base % _PAGES[0] == 0 else None
                if around is not None and end <= around.end:
                    yield CollectorTable("mark stack", Range(base, end))


def _read_mark_stack(tables: Tables, words: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the address and the number of chunks of each part of a mark stack. `words`: its fields,
    if there is one. Up to JDK 21, they are the maximum number of chunks, the address of the chunks,
    and their number. Later, they are the least, the largest and the current number of chunks, the
    number of buckets, a flag, and the address of an array of buckets. The first bucket has the
    least number of chunks, and each following one has as many as all before it. Small stacks are
    left out, because small numbers and an aligned address confirm little."""
    first, second, third, buckets, _, place = words
    if _LEAST_CHUNKS <= third <= first <= _MOST_CHUNKS and not third & (third - 1):
        yield second, third
    if _LEAST_CHUNKS <= first <= third <= second <= _MOST_CHUNKS and not first & (first - 1) and 0 < buckets <= _MOST_BUCKETS:
        for number, base in enumerate(_words(tables, place, buckets)):
            yield base, first << max(number - 1, 0)


def _list_parallel(tables: Tables, whole: Range) -> Iterator[CollectorTable]:
    """Yield the tables of Parallel to which static variables of libjvm refer. There are two bitmaps
    in one range, or only one since JDK 22."""
    names = [f"_{kind}_{end}_addr" for kind in ("reserved", "committed") for end in ("low", "high")]
    fields = [tables.fields.get(("PSVirtualSpace", name)) for name in names]
    if ("ParallelScavengeHeap", "_old_gen") not in tables.fields or None in fields:
        return
    for value in list_static_pointers(tables):
        low, high, first, last = (tables.memory.word(value + field.offset) or 0 for field in fields if field)
        if 0 < low == first < last <= high and not (low % _PAGES[0] or high % _PAGES[0]):
            is_bitmap = any(_fits(high - low, whole, part) for part in (_BITMAP, _BITMAP // 2))
            yield CollectorTable(_BITMAP_NAME if is_bitmap else "data of regions", Range(low, high))


def _words(tables: Tables, address: int, most: int) -> tuple[int, ...]:
    """Return at most `most` words from an aligned address on."""
    return (tables.memory.words(address, most) or ()) if address and address % tables.memory.size == 0 else ()


def _pairs(words: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield neighbouring words that may be the bounds of reserved memory."""
    for low, high in zip(words, words[1:]):
        if 0 < low < high and not (low % _PAGES[0] or high % _PAGES[0]):
            yield low, high
