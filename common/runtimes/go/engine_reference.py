"""Find the types of Go's objects in Python: the reference for common/native/go_types.c."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Optional

from findleaks.engine.reference.engine import PureEngine
from findleaks.engine.terms import State
from findleaks.runtimes.go import engine as terms
from findleaks.runtimes.go.engine import ARENA, HEADER, NO_HEADER, NONE, NOSCAN, NOTHING, PAGE, RAW, SEEDED, TypeSearch
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


class _Search:
    def __init__(self, engine: PureEngine, pieces: Sequence[Piece], search: TypeSearch) -> None:
        self.order, self.pieces, self.search, self.known = engine.arch.byteorder, pieces, search, search.table
        self.starts = [piece.address for piece in pieces]

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
        at = bisect_right(self.starts, address) - 1
        offset = address - self.starts[at] if at >= 0 else 0
        if at < 0 or offset + 8 > len(self.pieces[at].data):
            return None
        return int.from_bytes(self.pieces[at].data[offset : offset + 8], self.order)

    def record(self, one: _Object, value: int) -> None:
        self.search.types[one.number] = value
        self.search.queue[self.search.state[2]] = one.begin
        self.search.state[2] += 1

    def assign(self, address: int, value: int, least: int) -> None:
        known, number, is_array = self.known, value >> 1, value & 1
        if number >= len(known.sizes) or not known.sizes[number]:
            return
        one, size = self.object_at(address), known.sizes[number]
        if one is None or self.search.types[one.number] != NONE:
            return
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
        if size <= one.room and least <= one.room and not is_small:
            self.record(one, value)

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
            if self.search.types[one.number] == NONE and number < len(known.sizes) and 0 < known.sizes[number] <= one.room:
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
            word = self.word(place) if kind != terms.SECOND else None
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
        value = self.search.types[one.number] if one is not None else NONE
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
