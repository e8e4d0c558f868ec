"""Find unused words of objects: the reference for common/native/cpython_remains.c."""

from __future__ import annotations

from array import array
from typing import Optional

from findleaks.engine.contract import Blocks
from findleaks.engine.reference.engine import PureEngine
from findleaks.engine.terms import LAST_WORD
from findleaks.runtimes.cpython.engine import NO_OBJECT, ObjectTally
from findleaks.runtimes.cpython.remains import (
    ATTRIBUTES,
    BUFFER,
    ENTRIES,
    ENTRY_WORDS,
    FRAME,
    FRAME_NUMBER,
    FRAME_OBJECT,
    ITEMS,
    NUMBER,
    POINTER,
    SET,
    SIZES,
    FrameLayout,
    Remains,
)
from findleaks.runtimes.cpython.storage_reference import blocks_in
from findleaks.runtimes.cpython.wanted_patterns import ROW, WANTED
from findleaks.target.base import Piece
from findleaks.target.encoded_numbers import decode_signed

_SET_MASK, _SET_TABLE = 4, 5
_OB_SIZE, _VALID = 2, 3
_COUNT_AT = 3
_FRAME_AT = 3


def object_remains(engine: PureEngine, blocks: Blocks, piece: Piece, tally: ObjectTally, remains: Remains) -> array[int]:
    """See remains.py and fl_object_remains."""
    word, rest = engine.arch.word, array("Q")
    layout = remains.layout
    for one in blocks_in(engine, blocks, piece):
        number = tally.found[one.number]
        kind = remains.kinds[number] if number != NO_OBJECT else 0
        if not kind & (FRAME | FRAME_OBJECT | SET | ITEMS | ATTRIBUTES | BUFFER) or tally.patterns[one.number] != tally.lives[number]:
            continue
        offset = tally.offsets[number]
        left = min(len(one.data), one.size // word * word)
        if kind & SET and remains.grown[number] and left >= offset + (ENTRIES + ENTRY_WORDS) * word:
            words = engine.arch.unpack(bytes(one.data[offset : offset + ENTRIES * word]))
            if _has_grown(blocks, words, one.start + offset + ENTRIES * word):
                tally.patterns[one.number] = remains.grown[number]
        first = None
        if kind & FRAME and left >= offset + max(layout.top + 1, layout.locals + 1, layout.state + 2) * word:
            first = _first_unused(engine, layout, one.data[:left], one.start, offset)
        if kind & FRAME_OBJECT and left >= offset + (_FRAME_AT + 1) * word:
            place = remains.sizes[SIZES * number]
            first = _first_unused_of_frame(engine, layout, one.data[:left], one.start, offset, place, one.size // word * word)
        if kind & ITEMS and left >= offset + (_OB_SIZE + 1) * word:
            begin, item, lowest = remains.sizes[SIZES * number : SIZES * (number + 1)]
            place = offset + _OB_SIZE * word
            count = engine.arch.unpack(bytes(one.data[place : place + word]))[0] if item else 0
            # ob_size of a negative int is negative.
            count = abs(decode_signed(count, 8 * word)) >> lowest
            first = -(-(begin + count * item) // word)
        if kind & BUFFER and left >= offset + (_COUNT_AT + 1) * word:
            begin, item, width = remains.sizes[SIZES * number : SIZES * (number + 1)]
            place = offset + _COUNT_AT * word
            width = 1 if width == 1 else 4
            end = begin + int.from_bytes(one.data[place : place + width], engine.arch.byteorder) * item
            first = end // word if end <= one.size // word * word else None
        begin = remains.sizes[SIZES * number]
        if kind & ATTRIBUTES and left >= begin + word:
            capacity, valid = one.data[begin], one.data[begin + _VALID]
            first = begin // word + (1 + capacity if valid else 0)
            if valid and all(blocks.find(value) < 0 for value in engine.arch.unpack(bytes(one.data[first * word : left // word * word]))):
                first = None
        if first is None or first >= one.size // word:
            continue
        tail = ROW * tally.lives[number] + first
        if first >= LAST_WORD or not remains.tails[tail]:
            if kind & (FRAME | FRAME_OBJECT) or any(one.data[first * word : left // word * word]):
                rest.extend((one.start + first * word, one.start + one.size // word * word))
        elif remains.tails[tail] >= WANTED:
            remains.tails[tail] = WANTED
        else:
            tally.patterns[one.number] = remains.tails[tail]
    return rest


def _has_grown(blocks: Blocks, words: tuple[int, ...], own: int) -> bool:
    mask, table = words[_SET_MASK], words[_SET_TABLE]
    return mask >= 8 and not mask & (mask + 1) and table != own and blocks.find(table) >= 0


def _first_unused(engine: PureEngine, layout: FrameLayout, data: memoryview, start: int, offset: int) -> Optional[int]:
    word, order = engine.arch.word, engine.arch.byteorder

    def read(place: int, size: int) -> int:
        return int.from_bytes(data[offset + place * word : offset + place * word + size], order)

    number, locals_ = decode_signed(read(layout.top, 4), 32), offset // word + layout.locals
    if layout.form in (NUMBER, POINTER):
        state = decode_signed(data[offset + layout.state * word + 3], 8)
        if state >= 0:
            return locals_ if state else None
        if layout.form == NUMBER:
            return locals_ + number if number >= 0 else None
        end = read(layout.top, word)
    elif layout.form == FRAME_NUMBER:
        if number < 0:
            return None
        end = read(layout.locals, word) + number * word & (1 << 64) - 1
    else:
        end = read(layout.top, word)
        if not end and not data[offset + layout.state * word + 4]:
            end = read(layout.locals, word)
    first = (end - start) // word if end > start and not end % word else 0
    return first if first >= locals_ else None


def _first_unused_of_frame(
    engine: PureEngine, layout: FrameLayout, data: memoryview, start: int, offset: int, place: int, size: int
) -> Optional[int]:
    word, order = engine.arch.word, engine.arch.byteorder

    def read(place: int, size: int) -> int:
        return int.from_bytes(data[place : place + size], order)

    frame = read(offset + _FRAME_AT * word, word)
    inside = frame - start
    if frame and frame % word == 0 and not 0 <= inside < size and place > offset + _FRAME_AT * word:
        return place // word
    if inside % word or not offset + _FRAME_AT * word < inside < len(data):
        return None
    begin = inside // word - layout.begin
    top, locals_ = begin + layout.top, begin + layout.locals
    if (top + 1) * word > len(data):
        return None
    if layout.form == NUMBER:
        number = decode_signed(read(top * word, 4), 32)
        return locals_ + number if number >= 0 else None
    end = read(top * word, word)
    first = (end - start) // word if end > start and not end % word else 0
    return first if first >= locals_ else None
