"""Find Go's heap without symbols: arenas of 64 MiB, divided into spans of pages.

Sources: Go 1.19 to 1.26, src/runtime: malloc.go (heapArenaBytes, arenaBaseOffset, arenaL2Bits),
mheap.go (mheap.arenas, heapArena, mspan, mSpanState). On 64-bit Linux mheap_.arenas points to a
table of 2^22 pointers to heapArenas, one for each 64 MiB of addresses. A heapArena has a pointer to
an mspan for each of its 8,192 pages of 8 KiB; an mspan stores which pages it spans.

The table is identified by this cycle: the mspans found through its entries span the pages through
which they were found. The heap's addresses are not fixed: 1.26 randomizes them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import NamedTuple, Optional

from findleaks.allocators.bulk import find_pointers, read_records
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.runtimes.go.span_table import SpanTable
from findleaks.target.arch import AARCH64, X86_64
from findleaks.target.base import Range, Region, Target
from findleaks.target.ranges import nonzero_pieces, region_at

ARENA, PAGE = 64 << 20, 8 << 10
PAGES = ARENA // PAGE
TABLE = 8 << 22  # bytes of the table of arenas

# By architecture: the number added to an address before the division by ARENA that gives the index
# of its entry (minus arenaBaseOffset).
OFFSETS = {X86_64.name: 1 << 47, AARCH64.name: 0}

# Offset of the spans in a heapArena: since 1.22; in 1.20 and 1.21 after the bitmap and noMorePtrs;
# up to 1.19 after the bitmap.
SPANS_AT = (0, (1 << 20) + (16 << 10), 2 << 20)

# Offsets in an mspan, in words: the address of its first page, its number of pages.
START, COUNT = 3, 4

MSPAN = 20  # words read of an mspan

# Possible offsets of elemsize in an mspan, in words. limit is the next word; the state is five
# bytes before elemsize.
ELEMENT = range(8, MSPAN - 1)

STATE_BEFORE = 5
OBJECTS, MANUAL = 1, 2  # mSpanInUse; mSpanManual: stacks, and some of the collector's buffers

LARGEST = 1 << 40  # a region that is larger is not part of the heap, but the shadow of a sanitizer

MAX_SLOTS = 1 << 16  # maximum number of addresses tried as the start of an arena
# Maximum number of entries read of possible tables: a hostile core may have many tables.
MAX_LOOKS = 1 << 18

SAMPLE = 16  # mspans of an arena that are checked
CHECKED = 512  # mspans of a heap in which elemsize is looked for
OFTEN = 1 << 14  # spans between two checks for the user's interrupt


class Arena(NamedTuple):
    """One arena of Go's heap.

    `entry` is the address of its heapArena. `spans` has the mspan of each page, 0 for none.
    `starts` has a bit for each page, set if a span of objects begins there (pageInUse)."""

    entry: int
    spans: Sequence[int]
    starts: bytes


class Heap(NamedTuple):
    """Go's heap: the address of the table, the addresses of the arenas, ascending, and their spans,
    ascending and disjoint. There are no spans if the layout of an mspan is unknown. `entries` has
    the address of each arena's heapArena, `layout` is an element of SPANS_AT."""

    table: int
    arenas: Sequence[int]
    spans: SpanTable
    entries: Sequence[int]
    layout: int


def heap(target: Target, engine: Engine, data: Sequence[Range]) -> Optional[Heap]:
    """Return the heap whose table of arenas is referenced by a word in this data, or None. Raises
    Interrupted."""
    offset = OFFSETS.get(target.arch.name)
    if offset is None:
        return None
    memory, regions = Memory(target), anonymous(target.regions())
    slots = _slots(regions)
    looks, unread = 0, None
    for table in _tables(target, engine, data, regions):
        looks += len(slots)
        if looks > MAX_LOOKS:
            break
        found: dict[int, int] = {}
        for base in slots:
            if target.is_interrupted():
                raise Interrupted
            entry = _entry(target, table + ((base + offset) // ARENA) * 8)
            if entry:
                found[base] = entry
        entries = sorted(found.values())
        if any(after - before < 8 * PAGES for before, after in zip(entries, entries[1:])):
            continue  # a large array of pointers to small objects, not to heapArenas
        # One arena is enough to identify the table. In the others, most pages may be freed, and
        # refer to mspans that span other pages now.
        layouts = (_find_layout(memory, base, entry) for base, entry in found.items())
        layout = next((one for one in layouts if one is not None), None)
        if layout is not None:
            arenas = {base: arena for base in sorted(found) if (arena := _read_arena(memory, found[base], layout)) is not None}
            made = Heap(table, list(arenas), _read(target, engine, arenas), [one.entry for one in arenas.values()], layout)
            if made.spans:
                return made
            # A large array of pointers in Go's heap may look like a table. It has no spans.
            unread = unread or made
    return unread


def anonymous(regions: Sequence[Region]) -> list[Region]:
    """Return memory that Go may have mapped. Since 1.25 it has names, if the kernel supports them:
    "[anon: Go: heap]"."""
    return [r for r in regions if r.writable and r.readable and r.private and (not r.name or r.name.startswith("[anon"))]


def _slots(regions: Sequence[Region]) -> list[int]:
    """Return addresses at which arenas may begin."""
    regions = [region for region in regions if region.size <= LARGEST]
    bases = (base for region in regions for base in range(region.start // ARENA * ARENA, region.end, ARENA))
    return list(islice((base for base, _ in groupby(bases)), MAX_SLOTS))


def _tables(target: Target, engine: Engine, data: Sequence[Range], regions: Sequence[Region]) -> Iterator[int]:
    """Yield possible tables: words that point to a page of anonymous memory with at least the size
    of a table."""
    if not regions:
        return
    seen: set[int] = set()
    for start, end in data:
        for piece in nonzero_pieces(target, start, end):
            for value in find_pointers(engine, piece, regions[0].start, regions[-1].end)[1]:
                region = region_at(regions, value) if value % target.arch.page == 0 and value not in seen else None
                if region is not None and region.end - value >= TABLE:
                    seen.add(value)
                    yield value


def _entry(target: Target, address: int) -> int:
    """Return an entry of the table, 0 if unreadable. Does not make pages resident: most of the
    table was never accessed."""
    for piece in target.pieces(address, address + 8):
        return int.from_bytes(piece.data[:8], target.arch.byteorder) if len(piece.data) >= 8 else 0
    return 0


def _find_layout(memory: Memory, base: int, address: int) -> Optional[int]:
    """Return the offset of the spans in the heapArena at `address`; None if there is no heapArena.

    A sample of the mspans is checked: most of them must span the pages that refer to them."""
    for place in SPANS_AT:
        arena = _read_arena(memory, address, place)
        if arena is None:
            continue
        # A freed page may still refer to an mspan that now spans other pages. Therefore the first
        # pages of spans of objects are checked first, then all pages that refer to an mspan.
        used = islice((number for number in _bits(arena.starts) if arena.spans[number]), SAMPLE)
        for pages in (list(used), [number for number, word in enumerate(arena.spans) if word][:SAMPLE]):
            covering = sum(_covers(memory.words(arena.spans[number], COUNT + 1), base + number * PAGE) for number in pages)
            if 2 * covering > len(pages):
                return place
    return None


def _read_arena(memory: Memory, address: int, place: int) -> Optional[Arena]:
    """Return the heapArena at `address`; None if it cannot be read. `place` is the offset of its
    spans in bytes."""
    words = memory.words(address + place, PAGES + PAGES // 64)
    if words is None:
        return None
    return Arena(address, array("Q", words[:PAGES]), b"".join(word.to_bytes(8, "little") for word in words[PAGES:]))


def _covers(span: Optional[Sequence[int]], page: int) -> bool:
    return span is not None and 0 < span[COUNT] < 1 << 35 and span[START] <= page < span[START] + span[COUNT] * PAGE


def _read(target: Target, engine: Engine, arenas: dict[int, Arena]) -> SpanTable:
    """Return the spans in use of these arenas.

    The result is empty unless nearly all mspans are valid and nearly all spans of objects are
    found. A few may be invalid, because a thread may have been stopped while it changed them. An
    mspan is also valid if it now spans other pages than those that refer to it."""
    addresses = array("Q", sorted({word for arena in arenas.values() for word in arena.spans if word and word % 8 == 0}))
    data, _ = read_records(target, engine, addresses, 8 * MSPAN)
    words = array("Q", target.arch.words(data))
    starts, counts, found, wrong = words[START::MSPAN], words[COUNT::MSPAN], array("I"), 0
    for number, (address, start, count) in enumerate(zip(addresses, starts, counts)):
        if number % OFTEN == 0 and target.is_interrupted():
            raise Interrupted
        base = start & -ARENA
        if start and (start % PAGE or base not in arenas or not 0 < count < 1 << 35):
            # Freed pages may still refer to their mspan, which may span other pages now, or none.
            # This mspan is invalid.
            wrong += 1
        elif start and arenas[base].spans[(start - base) // PAGE] == address:
            found.append(number)
    checked = [words[number * MSPAN : (number + 1) * MSPAN] for number in found[:: len(found) // CHECKED + 1]]
    limited = {at: sum(_has_limit(span, at) for span in checked) for at in ELEMENT}
    # Require 90 %: the elemsize of free mspans is stale.
    element = next((at for at, count in limited.items() if checked and 10 * count >= 9 * len(checked)), 0)
    nothing = SpanTable(array("Q"), array("Q"), b"", array("Q"))
    if not element:
        return nothing
    states = data[8 * element - STATE_BEFORE :: 8 * MSPAN]
    live = sorted((number for number in found if 0 < states[number] <= MANUAL), key=starts.__getitem__)
    made = _table(live, starts, counts, states, addresses)
    overlapping = {at for at in range(1, len(live)) if made.ends[at - 1] > made.starts[at]}
    if overlapping:
        made = _table([one for at, one in enumerate(live) if at not in overlapping], starts, counts, states, addresses)
    objects = set(made.in_state(OBJECTS)[0])
    wrong += len(overlapping) + sum(states[number] > MANUAL for number in found)
    wrong += sum(base + page * PAGE not in objects for base, arena in arenas.items() for page in _bits(arena.starts))
    return made if 100 * wrong <= len(made) else nothing


def _table(
    numbers: Sequence[int], starts: Sequence[int], counts: Sequence[int], states: Sequence[int], addresses: Sequence[int]
) -> SpanTable:
    """Return a table of the mspans with these numbers."""
    first = array("Q", map(starts.__getitem__, numbers))
    ends = array("Q", [start + counts[number] * PAGE for start, number in zip(first, numbers)])
    return SpanTable(first, ends, bytes(map(states.__getitem__, numbers)), array("Q", map(addresses.__getitem__, numbers)))


def _bits(data: bytes) -> Iterator[int]:
    """Yield the indices of set bits; the lowest bit of each byte comes first."""
    for number, byte in enumerate(data):
        if byte:
            yield from (8 * number + bit for bit in range(8) if byte >> bit & 1)


def _has_limit(span: Sequence[int], at: int) -> bool:
    """Return whether the word at `at` and the next can be elemsize and limit."""
    size = span[COUNT] * PAGE
    return 0 < span[at] <= size and span[START] < span[at + 1] <= span[START] + size


def total_bytes(ranges: Sequence[Range]) -> int:
    """Return the sum of the sizes of ranges."""
    return sum(end - start for start, end in ranges)
