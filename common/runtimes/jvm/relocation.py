"""Read the colors of ZGC's references, and which objects ZGC has moved.

Each page whose objects are moved has a ZForwarding. It contains the addresses of the page, the
alignment of its objects, and a hash table of entries. An entry has the previous place of an object
within the page (as a number), and its current offset in the heap. ZGC writes the entry when it has
copied the object. The table of forwardings has one word for each granule of addresses, which refers
to the ZForwarding of the page. ZGC keeps a ZForwarding in this table until all references to the
previous addresses have been replaced.

The reference count of a ZForwarding is 0 when the page has been released. After that, ZGC removes
the page from the table of pages. If no other memory is free, ZGC moves the objects within their
page. During this, the reference count is negative.

Sources: OpenJDK 17, 21 and 25, src/hotspot/share/gc/z: zForwarding.hpp, zForwarding.inline.hpp,
zForwardingEntry.hpp, zForwardingTable.hpp, zAttachedArray.inline.hpp, zHeap.hpp, zGeneration.hpp
(in 21, the names of ZGC without generations begin with X)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.runtimes.jvm.concurrent import OLD_AGE, page_age, read_mask, zgc_prefix
from findleaks.runtimes.jvm.references import ABOVE, BELOW, NO_MOVES, REMAPPED_SHIFT, Colors, Moves
from findleaks.runtimes.jvm.vm_structs import VMStructs
from findleaks.runtimes.jvm.zgc_jdk11 import is_jdk11, read_moves
from findleaks.target.base import Range
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import nonzero_pieces
from findleaks.value_classes import NamedTuple

_MOST_TABLE, _MOST_ENTRIES = 1 << 27, 1 << 27  # words of a table; entries of all tables
_MOST_SHIFT = 40
_PAGE = 4096  # bytes of a table that are skipped together
# The color of references to moved objects, as a multiple of the first bit above an address.
_REMAPPED = 4
_POPULATED, _NOW_SHIFT, _NOW_MASK, _BEFORE_SHIFT = 1, 1, (1 << 45) - 1, 46  # parts of an entry


class Relocation(NamedTuple):
    """The objects that ZGC has moved. Some references still contain the previous addresses of these
    objects.

    `copies` ("Q", ascending): previous addresses of moved objects, if this memory still contains a
    copy of the object. `moving`: pages whose objects are being moved within the page. `is_known`:
    whether all tables were read."""

    young: Moves = NO_MOVES
    old: Moves = NO_MOVES
    copies: array[int] = array("Q")
    moving: Sequence[Range] = ()
    is_known: bool = True


class _Forwarding(NamedTuple):
    """A ZForwarding. `start`: the address of the page, `size`: its bytes, `shift`: log2 of the
    alignment of its objects, `users`: the reference count, `entries`: the entries that are in
    use."""

    start: int
    size: int
    shift: int
    users: int
    entries: Sequence[int]


def read_colors(tables: VMStructs) -> Optional[tuple[Colors, int]]:
    """Return the colors of references, without moves, and the address of the heap; None if the
    collector is not ZGC."""
    prefix = zgc_prefix(tables)
    if not prefix:
        return None
    offsets = read_mask(tables, prefix, "AddressOffsetMask")
    good = read_mask(tables, prefix, "AddressGoodMask")
    if good:
        bits = [1 << number for number in range(64) if good >> number & 1]
        return Colors(ABOVE, offsets, good | _REMAPPED * (offsets + 1)), bits[0]
    remapped = read_mask(tables, prefix, "PointerLoadGoodMask") >> REMAPPED_SHIFT
    return Colors(BELOW, offsets, remapped.bit_length() - 1), offsets + 1


def read_relocation(tables: VMStructs, colors: Colors, base: int) -> Relocation:
    """Return the objects that ZGC has moved. `base`: the address of the heap."""
    if is_jdk11(tables):
        found_moves = read_moves(tables, colors.offsets, base)
        return Relocation(found_moves[0], copies=found_moves[1]) if found_moves is not None else Relocation(is_known=False)
    prefix = zgc_prefix(tables)
    heap = tables.place(f"{prefix}CollectedHeap", "_heap", tables.word("Universe", "_collectedHeap") or 0)
    found = _forwarding_tables(tables, prefix, heap)
    if len(found) != (1 if colors.place == ABOVE else 2):
        return Relocation(is_known=False)
    reader = _Reader(tables, prefix, base, colors.offsets)
    # Without generations there is one table. Its `is_young` is False, because pages have no age.
    moves = [reader.read(*one, is_young=len(found) == 2 and number == 1) for number, one in enumerate(found)]
    old, young = moves if len(moves) == 2 else (NO_MOVES, moves[0])
    return Relocation(young, old, array("Q", sorted(reader.copies)), reader.moving, reader.is_known)


def _forwarding_tables(tables: VMStructs, prefix: str, heap: int) -> list[tuple[int, int]]:
    """Return address and size of each table of forwardings.

    With generations, each generation has such a table, but vmStructs has no offset of it. Therefore
    this function searches the ZHeap for two successive words: the addresses of the page allocator
    and of the table of pages. In a ZGeneration, these words precede the table of forwardings. The
    table of the old generation comes first."""
    memory, word = tables.memory, tables.memory.size
    known = tables.place(f"{prefix}Heap", "_forwarding_table", heap)
    if known:
        words = memory.words(known, 2)
        found = [(words[1], words[0])] if words else []
    else:
        words = memory.words(heap, tables.sizes.get(f"{prefix}Heap", 0) // word) or ()
        owners = tables.place(f"{prefix}Heap", "_page_allocator", heap), tables.place(f"{prefix}Heap", "_page_table", heap)
        found = [(words[at + 3], words[at + 2]) for at in range(len(words) - 3) if words[at : at + 2] == owners]
    return [(table, size) for table, size in found if table and 0 < size <= _MOST_TABLE]


class _Reader:
    """Reads tables of forwardings."""

    def __init__(self, tables: VMStructs, prefix: str, base: int, offsets: int) -> None:
        self._tables, self._prefix, self._base, self._offsets = tables, prefix, base, offsets
        self._granule = min(tables.constants.get(f"{prefix}GranuleSizeShift", 0), _MOST_SHIFT)
        self._size = tables.sizes.get(f"{prefix}Forwarding", 0)
        heap = tables.place(f"{prefix}CollectedHeap", "_heap", tables.word("Universe", "_collectedHeap") or 0)
        pages = tables.place(f"{prefix}PageTable", "_map", tables.place(f"{prefix}Heap", "_page_table", heap))
        self._pages = tables.word(f"{prefix}GranuleMapForPageTable", "_map", pages) or 0
        self._left = _MOST_ENTRIES
        self.is_known = bool(self._granule and self._size)
        self.copies: list[int] = []
        self.moving: list[Range] = []

    def read(self, table: int, size: int, is_young: bool) -> Moves:
        """Return the moves of one table, which has `size` words. `is_young`: whether it is the
        table of the young generation."""
        found = sorted(self._forwardings(table, size), key=lambda one: one.start)
        moves = Moves(array("Q"), array("Q"))
        for one in found:
            before = [one.start + (entry >> _BEFORE_SHIFT << one.shift) for entry in one.entries]
            moves.before.extend(before)
            moves.now.extend(self._base + (entry >> _NOW_SHIFT & _NOW_MASK) for entry in one.entries)
            if one.users > 0 or (not one.users and one.entries and self._has_copies(one.start, moves.now[-1], is_young)):
                self.copies += before
            elif one.users < 0:
                self.moving.append(Range(one.start, one.start + one.size))
        if any(low.start + low.size > high.start for low, high in zip(found, found[1:])):
            self.is_known = False
            return NO_MOVES
        return moves

    def _has_copies(self, address: int, moved_to: int, is_young: bool) -> bool:
        """Return whether the released page at `address` is still in the table of pages. If another
        page is in the table, it is newer: its sequence number is not lower than that of the page at
        `moved_to`, or it is in the old generation although the released page was in the young one.
        Sequence numbers of the young generation are not lower than those of the old generation."""
        page, target = self._page_at(address), self._page_at(moved_to)
        if is_young and page_age(self._tables, page) == OLD_AGE:
            return False
        return 0 < self._sequence_number(page) < self._sequence_number(target)

    def _page_at(self, address: int) -> int:
        """Return the address of the ZPage that has an address of the heap, 0 if there is none."""
        place = self._pages + (address - self._base >> self._granule) * self._tables.memory.size
        return (self._tables.memory.word(place) or 0) if self._pages else 0

    def _sequence_number(self, page: int) -> int:
        """Return the sequence number of a page, 0 if there is none. This is the sequence number of
        the collection before which the page was allocated."""
        return (self._tables.int32(f"{self._prefix}Page", "_seqnum", page) or 0) if page else 0

    def _forwardings(self, table: int, size: int) -> Iterator[_Forwarding]:
        memory, seen = self._tables.memory, set[int]()
        for place, word in interruptible(memory.target, self._words(table, table + size * memory.size), 1 << 10):
            if word not in seen and self.is_known:
                seen.add(word)
                found = self._forwarding(word)
                # The first word of the table that refers to a ZForwarding is the word of the first
                # granule of its page.
                if found is None or found.start != self._base + ((place - table) // memory.size << self._granule):
                    self.is_known = False
                    return
                yield found

    def _words(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the address and the value of each word that is not 0. Most words of a table are
        0."""
        arch = self._tables.memory.arch
        for piece in nonzero_pieces(self._tables.target, start, end):
            for first in range(0, len(piece.data), _PAGE):
                part = bytes(piece.data[first : first + _PAGE])
                if part.strip(b"\0"):
                    yield from ((piece.address + first + at * arch.word, word) for at, word in enumerate(arch.words(part)) if word)

    def _forwarding(self, address: int) -> Optional[_Forwarding]:
        """Return the ZForwarding at this address; None if it is damaged."""
        tables, kind = self._tables, f"{self._prefix}Forwarding"
        virtual = tables.memory.words(tables.place(kind, "_virtual", address), 2)
        shift, count = tables.word(kind, "_object_alignment_shift", address), tables.int32(kind, "_ref_count", address)
        length = tables.word(f"{self._prefix}AttachedArrayForForwarding", "_length", tables.place(kind, "_entries", address))
        if virtual is None or shift is None or count is None or length is None or shift > _MOST_SHIFT:
            return None
        has_size = (f"{self._prefix}VirtualMemory", "_size") in tables.fields
        start, size = virtual[0], virtual[1] if has_size else virtual[1] - virtual[0]
        # The hash table has room for twice the number of objects, rounded up to a power of two.
        if not 0 < size <= self._offsets or start > self._offsets or length > 4 * max(size >> shift, 1) or length > self._left:
            return None
        self._left -= length
        entries = tables.memory.words(address + self._size + -self._size % tables.memory.size, length)
        if entries is None:
            return None
        used = sorted(entry for entry in entries if entry & _POPULATED)
        signed = count - (1 << 32) if count >> 31 else count
        return _Forwarding(self._base + start, size, shift, signed, used)
