"""Read the pages of ZGC in JDK 11, and which objects it has moved.

The names and layouts differ from those of later versions. The table of pages is an array with one
entry for each 2 MiB of addresses: the address of a ZPage, whose lowest bit is set if the objects of
the page are being moved. A page contains its own hash table of moved objects (forwarding table).
When all objects of a page have been moved, its reference count becomes 0 and its memory is
released. The page then stays in the table until the next collection, for its forwarding table.

Source: OpenJDK 11u, src/hotspot/share/gc/z: zPageTable.hpp, zPageTableEntry.hpp,
zAddressRangeMap.hpp, zPage.hpp (_virtual, _top; _refcount, _forwarding), zForwardingTable.hpp,
zForwardingTableEntry.hpp."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple, Optional

from findleaks.runtimes.jvm.references import Moves
from findleaks.runtimes.jvm.vm_structs import VMStructs
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import nonzero_pieces

MAP = ("ZAddressRangeMapForPageTable", "_map")
"""The field of the table of pages. Later versions lack it."""
_MOST_PAGES, _MOST_ENTRIES = 1 << 22, 1 << 27  # pages; entries of all forwarding tables
_SMALL, _MEDIUM = 0, 1  # types of pages
_GRANULE, _MOST_SHIFT = 21, 40  # log2 of bytes: the least size of a page; the largest alignment
_PAGE = 4096  # bytes of the table that are skipped together
_TO_BITS = 42  # bits of the new offset in an entry; the index of the previous place follows
_EMPTY = (1 << 64) - 1  # an unused entry


class Page(NamedTuple):
    """A ZPage; all numbers are offsets in the heap. `moved`: address and number of the entries of
    its forwarding table. The memory of a page without users is released."""

    kind: int
    start: int
    end: int
    top: int
    users: int
    moved: tuple[int, int]


def is_jdk11(tables: VMStructs) -> bool:
    """Return whether the tables describe ZGC as in JDK 11. The collector in use may be another."""
    return MAP in tables.fields


def read_pages(tables: VMStructs, offsets: int) -> Iterator[Page]:
    """Yield the pages, ascending. `offsets`: the mask of the bits of an offset."""
    memory, found = tables.memory, set[int]()
    heap = tables.place("ZCollectedHeap", "_heap", tables.word("Universe", "_collectedHeap") or 0)
    start = tables.word(*MAP, tables.place("ZPageTable", "_map", tables.place("ZHeap", "_pagetable", heap)))
    size = (offsets + 1 >> tables.constants.get("ZPageSizeMinShift", _GRANULE)) * memory.size
    for piece in nonzero_pieces(tables.target, start, start + size) if start else ():
        for first in range(0, len(piece.data), _PAGE):
            part = bytes(piece.data[first : first + _PAGE])
            if part.strip(b"\0"):
                found.update(word & ~1 for word in memory.arch.words(part))
        if len(found) > _MOST_PAGES:
            return
    pages = (_read_page(tables, address) for address in interruptible(tables.target, found - {0}))
    yield from sorted((page for page in pages if page is not None and page.end <= offsets + 1), key=lambda page: page.start)


def _read_page(tables: VMStructs, address: int) -> Optional[Page]:
    memory, virtual = tables.memory, tables.place("ZPage", "_virtual", address)
    forwarding = tables.place("ZPage", "_forwarding", address)
    places, moved = memory.words(virtual, 3), memory.words(forwarding, 2)
    kind, users = tables.int32("ZPage", "_type", address), memory.int32(forwarding - memory.size)
    if places is None or moved is None or kind is None or users is None or not places[0] <= places[2] <= places[1]:
        return None
    start, end, top = places
    return Page(kind & 0xFF, start, end, top, users, (moved[0], moved[1]))


def object_shift(tables: VMStructs, kind: int) -> int:
    """Return log2 of the alignment of objects on pages of this type."""
    if kind == _SMALL:
        return 3  # ZGC of JDK 11 supports no other alignment (ZObjectAlignmentSmallShift)
    name = "Medium" if kind == _MEDIUM else "Large"
    return min(tables.constants.get(f"ZObjectAlignment{name}Shift", _GRANULE), _MOST_SHIFT)


def read_moves(tables: VMStructs, offsets: int, base: int) -> Optional[tuple[Moves, array[int]]]:
    """Return the moved objects, and the previous addresses whose memory still exists; None if the
    tables are damaged. `base`: the address of the heap."""
    moves, copies, left = Moves(array("Q"), array("Q")), array("Q"), _MOST_ENTRIES
    for page in read_pages(tables, offsets):
        table, size = page.moved
        if not table:
            continue
        entries = tables.memory.words(table, size) if size <= left else None
        if entries is None:
            return None
        left -= size
        shift = object_shift(tables, page.kind)
        used = sorted(entry for entry in entries if entry != _EMPTY)
        before = [base + page.start + (entry >> _TO_BITS << shift) for entry in used]
        if before and before[-1] >= base + page.end:
            return None
        moves.before.extend(before)
        moves.now.extend(base + (entry & offsets) for entry in used)
        if page.users:
            copies.extend(before)
    return moves, copies
