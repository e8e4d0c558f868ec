"""Recognise structures of GLib in Python: the reference for common/native/glib_structures.c, which
has the sources of the layouts."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from findleaks.engine.contract import Blocks
from findleaks.engine.reference.engine import PureEngine
from findleaks.engine.terms import State
from findleaks.runtimes.glib import engine as kinds
from findleaks.target.base import Piece, Range
from findleaks.target.ranges import range_at

ROUNDING, LEAST, SOURCE_BYTES, CLOSURE_BYTES, CHANNEL_BYTES, MOST_BYTES = 24, 16, 96, 64, 120, 512
LEAST_ROOM, UNSPLIT = 24, 32
MOST_REFERENCES, MOST_ELEMENT, MOST_INLINE = 1 << 24, 1 << 20, 128
DAY, LAST_DAY = 86_400_000_000, 3_652_059


def find_structures(engine: PureEngine, blocks: Blocks, piece: Piece, code: Sequence[Range], quarks: int) -> array[int]:
    """See engine.py; each structure has three words."""
    found = array("Q")
    end = piece.address + len(piece.data)
    index = blocks.at_or_after(piece.address) if engine.arch.word == 8 else len(blocks)
    while index < len(blocks) and blocks.address(index) < end:
        start, size = blocks.address(index), blocks.size(index)
        if blocks.state(index) == State.IN_USE and LEAST <= size <= MOST_BYTES and start + size <= end:
            one = _Candidate(blocks, piece, code, quarks, start, size, engine.arch.byteorder)
            kind = one.kind()
            if kind:
                found.extend((index << 8 | kind, one.first, one.second))
        index += 1
    return found


def _is_power(number: int) -> bool:
    return number > 0 and not number & (number - 1)


def _is_count(references: int) -> bool:
    return 0 < references < MOST_REFERENCES


class _Candidate:
    """A block in a piece that may have a structure. `first` and `second`: see engine.Structure."""

    def __init__(self, blocks: Blocks, piece: Piece, code: Sequence[Range], quarks: int, start: int, size: int, order: Any) -> None:
        self._blocks, self._piece, self._code, self._quarks = blocks, piece, code, quarks
        self._data = bytes(piece.data[start - piece.address :][:size])
        self._start, self._order = start, order
        self.first = self.second = 0

    def _word(self, offset: int) -> int:
        return int.from_bytes(self._data[offset : offset + 8], self._order)

    def _half(self, offset: int) -> int:
        return int.from_bytes(self._data[offset : offset + 4], self._order)

    def _fits(self, size: int) -> bool:
        return size <= len(self._data) <= size + ROUNDING

    def _room(self, address: int) -> int:
        """Return the usable size of the block in use that starts at an address; 0 if there is
        none."""
        found = self._blocks.lookup(address) if address and address % 8 == 0 else None
        return found[2] if found is not None and found[1] == address and found[3] == State.IN_USE else 0

    def _is_request(self, address: int, size: int) -> bool:
        room = self._room(address)
        return size > 0 and size <= room <= max(size, LEAST_ROOM) + size // 4 + UNSPLIT

    def _is_code(self, address: int) -> bool:
        return range_at(self._code, address) is not None

    def _may_be_code(self, address: int) -> bool:
        return not address or self._is_code(address)

    def kind(self) -> int:
        """Return the kind of the structure in the block, or 0."""
        size = len(self._data)
        if 48 <= size <= MOST_INLINE + ROUNDING and self._is_inline_bytes():
            return kinds.BYTES
        if self._fits(88) and self._is_table(False):
            return kinds.TABLE
        if self._fits(96) and self._is_table(True):
            return kinds.TABLE
        if size >= CLOSURE_BYTES and self._is_closure():
            return kinds.CLOSURE
        if self._fits(72) and self._is_plain_closure():
            return kinds.PLAIN_CLOSURE
        if size >= SOURCE_BYTES and self._is_source():
            return kinds.SOURCE
        if size >= SOURCE_BYTES:
            return kinds.CHANNEL if self._fits(CHANNEL_BYTES) and self._is_channel() else 0
        found = 0
        if self._fits(48) and self._is_tree():
            return kinds.TREE
        if self._fits(40):
            found = kinds.BYTES if self._is_bytes() else kinds.PART if self._is_part() else self._array_kind()
        if not found and self._fits(32):
            found = kinds.SEQUENCE if self._is_sequence() else kinds.DATE if self._is_date() else self._pointers_kind()
        if not found and self._fits(24):
            found = kinds.QUEUE if self._is_queue() else kinds.STRING if self._is_string() else 0
        return found or (kinds.ERROR if self._fits(16) and self._is_error() else 0)

    def _is_table(self, is_recent: bool) -> bool:
        slots, counts, arrays = (self._word(0), 12, 32) if is_recent else (self._half(0), 8, 24)
        mask, entries, occupied = self._half(counts), self._half(counts + 4), self._half(counts + 8)
        if slots < 8 or not _is_power(slots) or mask != slots - 1 or not entries <= occupied <= slots:
            return False
        if not self._is_code(self._word(arrays + 24)) or not self._may_be_code(self._word(arrays + 32)):
            return False
        rooms = (self._room(self._word(arrays + at)) for at in (0, 8, 16))
        return _is_count(self._half(arrays + 40)) and all(room >= 4 * slots for room in rooms)

    def _is_tree(self) -> bool:
        if not self._half(40) or not _is_count(self._half(44)) or not self._is_code(self._word(8)):
            return False
        self.first = self._word(0)
        return self._may_be_code(self._word(16)) and self._may_be_code(self._word(24)) and self._room(self.first) >= 40

    def _pointers_kind(self) -> int:
        length, places, free = self._half(8), self._half(12), self._word(24)
        if length > places or not _is_count(self._half(16)) or not self._may_be_code(free):
            return 0
        if not self._is_request(self._word(0), 8 * places):
            return 0
        return kinds.POINTERS if free else kinds.PLAIN_POINTERS

    def _array_kind(self) -> int:
        data, length, places, element = self._word(0), self._half(8), self._half(12), self._half(16)
        if not 0 < element <= MOST_ELEMENT or not _is_count(self._half(24)):
            return 0
        if not self._may_be_code(self._word(32)):
            return 0
        size = max(16, 1 << (places * element - 1).bit_length()) if places else 16
        has_elements = length <= places and size // element == places and self._is_request(data, size)
        has_bytes = _is_power(places) and places >= 16 and length * element <= places and self._is_request(data, places)
        if not has_elements and not has_bytes:
            return 0
        return kinds.BYTE_ARRAY if element == 1 else kinds.ARRAY

    def _is_sequence(self) -> bool:
        self.first = self._word(0)
        return self._word(24) == self._start and self._may_be_code(self._word(8)) and self._room(self.first) >= 40

    def _is_date(self) -> bool:
        self.first = self._word(8)
        fits = self._word(0) < DAY and 0 < self._half(20) <= LAST_DAY and _is_count(self._half(24))
        return fits and self._room(self.first) >= 32

    def _is_bytes(self) -> bool:
        data = self._word(0)
        fits = _is_count(self._half(16)) and self._word(32) == data and self._is_code(self._word(24))
        return fits and self._is_request(data, self._word(8))

    def _is_part(self) -> bool:
        self.first, self.second = self._word(32), self._word(0)
        fits = _is_count(self._half(16)) and self._is_code(self._word(24)) and self.second not in (0, self.first) and self._word(8)
        return bool(fits) and self._room(self.first) >= 40

    def _is_inline_bytes(self) -> bool:
        offset, size = self._word(0) - self._start, self._word(8)
        if offset not in (40, 48) or not 0 < size <= len(self._data) - offset <= size + ROUNDING:
            return False
        return _is_count(self._half(16)) and not self._word(24) and not self._word(32)

    def _is_source(self) -> bool:
        callback, functions, following = self._word(8), self._word(16), self._word(72)
        if not _is_count(self._half(24)) or not functions or functions % 8 or callback % 8:
            return False
        if self._room(functions) or self._room(callback):
            return False
        self.first = functions
        return self._room(self._word(88)) >= 16 and (not following or self._room(following) >= SOURCE_BYTES)

    def _is_closure(self) -> bool:
        meta, listed, head, notifiers = self._word(0), self._word(24), self._half(32), self._word(56)
        count = (head >> 16 & 1) * 2 + (head >> 17 & 3) + (head >> 19 & 0xFF)
        self.first, self.second = self._word(40), listed or meta
        if not head & 0x7FFF or not self._is_code(self.first) or not all(map(self._may_be_code, (meta, listed, self._word(16)))):
            return False
        return (not notifiers and not count) or self._room(notifiers) >= 16 * (count or 1)

    def _is_plain_closure(self) -> bool:
        head = self._half(32)
        count = (head >> 16 & 1) * 2 + (head >> 17 & 3) + (head >> 19 & 0xFF)
        self.first, self.second = self._word(56), self._word(48)
        if any(self._word(at) for at in range(0, 48, 8) if at != 32):
            return False
        fits = head & 0x7FFF and count and self.second and self._is_code(self._word(64))
        return bool(fits) and self._room(self.first) >= 16 * count

    def _is_channel(self) -> bool:
        encoding, functions = self._word(16), self._word(8)
        self.first = functions
        if not _is_count(self._half(0)) or not functions or functions % 8 or self._room(functions):
            return False
        return (not encoding or self._room(encoding) > 0) and 0 < self._word(56) <= MOST_ELEMENT

    def _is_string(self) -> bool:
        text, length, places = self._word(0), self._word(8), self._word(16)
        self.first = text + length & (1 << 64) - 1
        return _is_power(places) and length < places and self._is_request(text, places)

    def _is_queue(self) -> bool:
        length, self.first, self.second = self._half(16), self._word(0), self._word(8)
        if not length or (length == 1) != (self.first == self.second):
            return False
        room = self._room(self.first)
        if not 24 <= room <= 24 + ROUNDING or self._room(self.second) != room:
            return False
        return self._may_be_zero(self.first + 16) and self._may_be_zero(self.second + 8)

    def _may_be_zero(self, address: int) -> bool:
        """Whether the word at an address is 0, or unknown because it is not in the piece."""
        offset = address - self._piece.address
        return not 0 <= offset <= len(self._piece.data) - 8 or not any(self._piece.data[offset : offset + 8])

    def _is_error(self) -> bool:
        self.first, self.second = self._half(0), self._word(8)
        return 0 < self.first < self._quarks and self._room(self.second) > 0
