"""Go's objects in Python: the reference for common/native/go_types.c and go_pointers.c."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Optional

from findleaks.engine.reference.engine import PureEngine
from findleaks.engine.terms import State
from findleaks.runtimes.go import engine as terms
from findleaks.runtimes.go.engine import ARENA, HEADER, NO_HEADER, NONE, NOSCAN, NOTHING, PAGE, RAW, SEEDED, PointerTable, TypeSearch
from findleaks.target.base import Piece
from findleaks.value_classes import NamedTuple

_LIMIT = 1 << 47


class _Object(NamedTuple):
    """An object: its block, where its contents begin, their bytes, bytes of its header, and the
    class of its page."""

    number: int
    begin: int
    room: int
    header: int
    kind: int


def find_types(engine: PureEngine, pieces: Sequence[Piece], search: TypeSearch, budget: int) -> None:
    """See engine.py."""
    found = _Search(engine, pieces, search)
    state = search.state
    while budget and state[0] < len(pieces):
        piece = pieces[state[0]]
        found.seed(piece)
        budget -= min(budget, len(piece.data) // SEEDED)
        state[0] += 1
    while budget and state[1] < state[2]:
        state[1] += 1
        found.follow_object(search.queue[state[1] - 1])
        budget -= 1


class _Memory:
    """Reads from ascending pieces of memory."""

    def __init__(self, engine: PureEngine, pieces: Sequence[Piece]) -> None:
        self.order, self.pieces = engine.arch.byteorder, pieces
        self.starts = [piece.address for piece in pieces]

    def bytes_at(self, address: int, size: int) -> bytes:
        """Return bytes of memory; b"" unless one piece has all of them."""
        at = bisect_right(self.starts, address) - 1
        offset = address - self.starts[at] if at >= 0 else 0
        inside = at >= 0 and offset + size <= len(self.pieces[at].data)
        return bytes(self.pieces[at].data[offset : offset + size]) if inside else b""

    def number_at(self, address: int, size: int) -> Optional[int]:
        data = self.bytes_at(address, size)
        return int.from_bytes(data, self.order) if data else None


class _Search(_Memory):
    def __init__(self, engine: PureEngine, pieces: Sequence[Piece], search: TypeSearch) -> None:
        super().__init__(engine, pieces)
        self.search, self.known = search, search.table

    def class_of(self, address: int) -> int:
        known = self.known
        after = bisect_right(known.arenas, address)
        if not after or address - known.arenas[after - 1] >= ARENA:
            return NOTHING
        return known.classes[(after - 1) * (ARENA // PAGE) + (address - known.arenas[after - 1]) // PAGE]

    def object_at(self, address: int) -> Optional[_Object]:
        kind = self.class_of(address)
        index = self.search.blocks.find(address) if kind < RAW else -1
        if index < 0 or self.search.blocks.state(index) != State.IN_USE:
            return None
        start, room = self.search.blocks.address(index), self.search.blocks.size(index)
        header = HEADER if self.known.has_headers and kind > NOSCAN and not kind & NOSCAN and room > NO_HEADER else 0
        return _Object(index, start + header, room - header, header, kind)

    def word(self, address: int) -> Optional[int]:
        return self.number_at(address, 8)

    def record(self, one: _Object, value: int) -> None:
        """Set an object's type. Only objects of types with pointers are followed."""
        self.search.types[one.number] = value
        if self.known.first[value >> 1] == self.known.first[(value >> 1) + 1]:
            return
        self.search.queue[self.search.state[2]] = one.begin
        self.search.state[2] += 1

    def assign(self, address: int, value: int, least: int) -> None:
        known = self.known
        if value >> 1 >= len(known.sizes) or not known.sizes[value >> 1]:
            return
        one = self.object_at(address)
        if one is None or self.search.type_of(one.number) != NONE:
            return
        enclosing = self.enclosing(one, address, value)
        if enclosing != value:
            address, value, least = one.begin, enclosing, 0
        number, is_array = value >> 1, value & 1
        size = known.sizes[number]
        if known.pointers[number] != terms.ANY and (known.pointers[number] != 0) == (one.kind & NOSCAN):
            return
        if address != one.begin:
            if (is_array or one.kind == terms.TINY) and address > one.begin and (address - one.begin) % size == 0 and size <= one.room:
                self.record(one, value)
            return
        least = least if is_array else size
        is_small = (
            least and known.pointers[number] != terms.ANY and one.kind != terms.TINY and least + one.header <= known.below[one.kind >> 1]
        )
        if size and size <= one.room and least <= one.room and not is_small:
            self.record(one, value)

    def enclosing(self, one: _Object, address: int, value: int) -> int:
        """Return the type of an object that contains a value of type `value` at `address`."""
        known = self.known
        for at in range(known.first[value >> 1], known.first[(value >> 1) + 1]):
            kind = known.kinds[at]
            if kind < terms.INSIDE:
                break
            if address - one.begin != known.offsets[at] or known.targets[at] >> 1 >= len(known.sizes):
                continue
            tag = self.number_at(one.begin, 1)
            if kind == terms.INSIDE or (tag is not None and (kind == terms.TAGGED) == (tag != 0)):
                return known.targets[at]
        return value

    def place(self, address: int) -> int:
        at = bisect_left(self.known.addresses, address) if address % 8 == 0 else len(self.known.addresses)
        return at if at < len(self.known.addresses) and self.known.addresses[at] == address else -1

    def follow_interface(self, type_: int, data: int) -> None:
        place = self.place(type_) if data else -1
        if place >= 0 and self.known.pointees[place] != NONE:
            self.assign(data, self.known.pointees[place], 0)

    def seed_words(self, piece: Piece, start: int, stop: int, in_objects: bool) -> None:
        data = piece.data[start - piece.address : stop - piece.address]
        for at in range(0, len(data) - 15, 8):
            word = int.from_bytes(data[at : at + 8], self.order)
            if self.place(word) >= 0 and (not in_objects or self._is_used(start + at)):
                self.follow_interface(word, int.from_bytes(data[at + 8 : at + 16], self.order))

    def _is_used(self, address: int) -> bool:
        index = self.search.blocks.find(address)
        return index >= 0 and self.search.blocks.state(index) == State.IN_USE

    def seed_headers(self, piece: Piece) -> None:
        blocks, known = self.search.blocks, self.known
        end = piece.address + len(piece.data)
        for index in range(blocks.at_or_after(piece.address), len(blocks)):
            start = blocks.address(index)
            if start >= end:
                break
            one = self.object_at(start) if blocks.size(index) > NO_HEADER and end - start >= HEADER else None
            if one is None or not one.header:
                continue
            place = self.place(int.from_bytes(piece.data[start - piece.address : start - piece.address + 8], self.order))
            number = known.elements[place] if place >= 0 else NONE
            if self.search.type_of(one.number) == NONE and number < len(known.sizes) and 0 < known.sizes[number] <= one.room:
                self.record(one, number << 1 | (one.room // known.sizes[number] > 1))

    def seed(self, piece: Piece) -> None:
        arenas, end = self.known.arenas, piece.address + len(piece.data)
        if self.known.has_headers:
            self.seed_headers(piece)
        at = (piece.address + 7) & ~7
        while at < end:
            after = bisect_right(arenas, at)
            inside = bool(after) and at - arenas[after - 1] < ARENA
            following = (at // PAGE + 1) * PAGE if inside else arenas[after] if after < len(arenas) else end
            stop = min(following, end)
            kind = self.class_of(at) if inside else RAW
            if kind == RAW or (kind != NOTHING and not kind & NOSCAN):
                self.seed_words(piece, at, stop + min(end - stop, 8), kind != RAW)
            at = stop

    def follow(self, number: int, begin: int) -> None:
        known = self.known
        for at in range(known.first[number], known.first[number + 1]):
            place, target, kind = begin + known.offsets[at], known.targets[at], known.kinds[at]
            word = self.word(place) if kind < terms.SECOND else None
            if not word:
                continue
            if kind == terms.POINTER:
                self.assign(word, target, 0)
            elif kind == terms.TEXT:
                self.assign(word, target | 1, 0)
            elif kind == terms.SLICE:
                room = self.word(place + 16)
                size = known.sizes[target >> 1] if target >> 1 < len(known.sizes) else 0
                if room and size and room <= _LIMIT // size:
                    self.assign(word, target | 1, room * size)
            else:
                second = self.word(place + 8)
                if second is not None and kind == terms.INTERFACE:
                    self.follow_interface(word, second)
                elif second is not None and kind == terms.DIRECTORY:
                    self.assign(word, known.targets[at + 1] if second else target, 0)

    def follow_object(self, begin: int) -> None:
        one = self.object_at(begin)
        value = self.search.type_of(one.number) if one is not None else NONE
        if one is None or value == NONE:
            return
        number = value >> 1
        size = self.known.sizes[number]
        if self.known.first[number] == self.known.first[number + 1]:
            return
        for at in range(0, one.room - size + 1, size):
            self.follow(number, one.begin + at)
            if not value & 1:
                return


_INLINE_MARKS = 128  # bytes after a span's bitmap; they exist if the last one is the span's class
_GROUP = 512  # bytes of memory that 64 bits of a bitmap describe


def copy_pointers(engine: PureEngine, pieces: Sequence[Piece], table: PointerTable, start: int, data: bytearray) -> int:
    """See engine.py."""
    copy = _Copy(engine, pieces, table, start, data)
    end = start + len(data)
    for number in range(bisect_right(table.ends, start), len(table.starts)):
        if table.starts[number] >= end:
            break
        copy.keep_span(number, max(table.starts[number], start), min(table.ends[number], end))
    return copy.unknown


class _Copy(_Memory):
    """Copies pointers to `data`. `unknown`: number of parts in which each word counts as a
    pointer."""

    def __init__(self, engine: PureEngine, pieces: Sequence[Piece], table: PointerTable, start: int, data: bytearray) -> None:
        super().__init__(engine, pieces)
        self.table, self.start, self.data, self.unknown = table, start, data, 0

    def keep_word(self, address: int) -> None:
        word = self.bytes_at(address, 8)
        if word:
            self.data[address - self.start : address - self.start + 8] = word

    def keep_all(self, start: int, end: int) -> None:
        self.unknown += 1
        for address in range(start, end, 8):
            self.keep_word(address)

    def keep_by_bitmap(self, start: int, end: int, bitmap: int, origin: int) -> None:
        for group in range(start - start % _GROUP, end, _GROUP):
            bits = self.number_at(bitmap + (group - origin) // 64, 8)
            self.unknown += bits is None
            for address in range(max(group, start), min(group + _GROUP, end), 8):
                if bits is None or bits >> (address - group) // 8 & 1:
                    self.keep_word(address)

    def entry_of(self, address: int) -> int:
        after = bisect_right(self.table.arenas, address)
        return self.table.entries[after - 1] if after and address - self.table.arenas[after - 1] < ARENA else 0

    def keep_by_pairs(self, first: int, size: int, start: int, end: int) -> None:
        is_large = size > terms.MOST_SMALL
        for begin in range(start - (start - first) % size, end, size):
            for address in range(start if is_large else begin, min(begin + size, end), 8):
                pair = self.number_at(self.entry_of(address) + address % ARENA // 32, 1)
                bits = pair >> (address // 8 & 3) if pair is not None else 0x11
                if not is_large and not bits & 0x10:
                    break
                self.unknown += pair is None
                if bits & 1 and address >= start:
                    self.keep_word(address)

    def keep_values(self, number: int, begin: int, limit: int, start: int, end: int) -> None:
        known = self.table
        stride, words, mask = known.strides[number], known.words[number], known.masks[number]
        for value in range(start - (start - begin) % stride if start > begin else begin, min(end, limit), stride):
            for word in range(words):
                address = value + 8 * word
                if start <= address < min(end, limit) and known.bits[mask + word // 8] >> word % 8 & 1:
                    self.keep_word(address)

    def keep_by_headers(self, first: int, size: int, start: int, end: int) -> None:
        addresses = self.table.addresses
        for begin in range(start - (start - first) % size, end, size):
            type_ = self.number_at(begin, HEADER)
            number = bisect_left(addresses, type_ or 0)
            if number < len(addresses) and addresses[number] == type_:
                self.keep_values(number, begin + HEADER, begin + size, start, end)
            elif type_ != 0:
                self.keep_all(max(begin, start), min(begin + size, end))

    def keep_span(self, number: int, start: int, end: int) -> None:
        known = self.table
        first, last, size, kind = known.starts[number], known.ends[number], known.sizes[number], known.classes[number]
        if known.form == terms.PAIRS:
            self.keep_by_pairs(first, size, start, end)
        elif known.form == terms.BITMAP:
            for arena in range(start - start % ARENA, end, ARENA):
                low, high, entry = max(arena, start), min(arena + ARENA, end), self.entry_of(max(arena, start))
                if entry:
                    self.keep_by_bitmap(low, high, entry, arena)
                else:
                    self.keep_all(low, high)
        elif size <= NO_HEADER:
            marks = _INLINE_MARKS if self.number_at(last - 1, 1) == kind else 0
            self.keep_by_bitmap(start, end, last - marks - (last - first) // 64, first)
        elif kind:
            self.keep_by_headers(first, size, start, end)
        elif known.large[number] != NONE:
            self.keep_values(known.large[number], first, last, start, end)
        else:
            self.keep_all(start, end)
