"""Find unused words of lists and of values: the reference for common/native/cpython_storage.c."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from findleaks.engine.contract import Blocks
from findleaks.engine.reference.engine import PureEngine
from findleaks.engine.terms import LAST_WORD, State
from findleaks.runtimes.cpython.buffers import ARRAY, BUFFERS, BYTES, CHILDREN, POINTERS
from findleaks.runtimes.cpython.engine import NO_OBJECT, ObjectTally
from findleaks.runtimes.cpython.storage import DEQUE, KEYS, LIST, MOST_PREFIX, SET, SHARED, SPARE, TAGGED, VALUES, Storage
from findleaks.runtimes.cpython.values_reference import find_values
from findleaks.runtimes.cpython.wanted_patterns import ROW, WANTED
from findleaks.target.base import Piece

_PREFIX, _CHUNK, _KEYS, _SET, _RAW, _DISPUTED = 0x80000000, 0x40000000, 0x20000000, 0x10000000, 0x08000000, 0xFFFFFFFF
_SAMPLE = 4  # items checked at both ends of a list
_MOST_CAPACITY = _RAW - 4
_LATER_VALUES = VALUES | TAGGED
_OLD_VALUES = _PREFIX | 64
_LOWEST_OBJECT = 4096
_CHILDREN_AT = 4
_CHUNK_ITEMS, _CHUNK_WORDS = 64, 66
_DEQUE_WORDS, _MOST_SPARE = 9, 16
_SHARED_KEYS = range(108, 111)  # see cpython_storage.c


class _Block(NamedTuple):
    """A block that starts in a piece, and its bytes there."""

    number: int
    start: int
    size: int
    data: memoryview


def blocks_in(engine: PureEngine, blocks: Blocks, piece: Piece) -> Iterator[_Block]:
    for index in range(blocks.at_or_after(piece.address), len(blocks)):
        start, size = blocks.address(index), blocks.size(index)
        if start >= piece.address + len(piece.data):
            return
        if start % engine.arch.word == 0:
            place = start - piece.address
            yield _Block(index, start, size, piece.data[place : place + size])


def claim_storage(engine: PureEngine, blocks: Blocks, piece: Piece, tally: ObjectTally, storage: Storage, claims: array[int]) -> None:
    """See storage.py and fl_claim_storage."""
    kinds = storage.kinds
    word, order = engine.arch.word, engine.arch.byteorder
    for one in blocks_in(engine, blocks, piece):
        number = tally.found[one.number]
        if number == NO_OBJECT:
            continue
        offset = tally.offsets[number]

        def at(words: int, one: _Block = one, offset: int = offset) -> int:
            return int.from_bytes(one.data[offset + words * word : offset + (words + 1) * word], order)

        for buffer in storage.buffers[BUFFERS * number : BUFFERS * (number + 1)]:
            place = buffer & 0xFF
            if buffer and len(one.data) >= offset + max(6, place + 1) * word:
                _claim_buffer(blocks, word, buffer >> 8, at(place), [at(field) for field in range(6)], tally, claims)
        if kinds[number] & LIST and len(one.data) >= offset + 5 * word:
            _claim_list(blocks, word, (at(0), at(2), at(3), at(4)), tally, claims)
        if kinds[number] & DEQUE and len(one.data) >= offset + _DEQUE_WORDS * word:
            _claim_deque(blocks, word, [at(place) for place in range(2, 7)], tally, claims)
            whole = kinds[number] & SPARE and len(one.data) >= offset + (_DEQUE_WORDS + 1 + _MOST_SPARE) * word
            spare = at(_DEQUE_WORDS) if whole and _is_deque(*(at(place) for place in range(2, 7))) else 0
            for place in range(spare if spare <= _MOST_SPARE else 0):
                _claim_chunk(blocks, word, at(_DEQUE_WORDS + 1 + place), _CHUNK_WORDS, _CHUNK_WORDS, tally, claims)
        if kinds[number] & KEYS and len(one.data) >= offset + 5 * word:
            _claim_keys(blocks, word, at(4), tally, claims)
        if kinds[number] & KEYS and len(one.data) >= offset + 6 * word:
            _claim_dict_values(blocks, word, at(5), kinds[number] & _LATER_VALUES, tally, claims)
        for place in _SHARED_KEYS if kinds[number] & SHARED else ():
            if len(one.data) >= offset + (place + 1) * word:
                _claim_keys(blocks, word, at(place), tally, claims)
        if kinds[number] & SET and len(one.data) >= offset + 6 * word:
            _claim_set(blocks, word, at(4) + 1, at(5), tally, claims)
        if kinds[number] & _LATER_VALUES == VALUES and offset >= 4 * word and len(one.data) >= offset:
            _claim_values(blocks, word, at(-4), tally, claims)
        if kinds[number] & _LATER_VALUES == TAGGED and offset >= 3 * word and len(one.data) >= offset and at(-3) & 1:
            _claim_values(blocks, word, at(-3) + 1, tally, claims)


def _claim_list(blocks: Blocks, word: int, fields: tuple[int, int, int, int], tally: ObjectTally, claims: array[int]) -> None:
    count, items, at, capacity = fields
    head = word if tally.shift else 0
    if (not items and (tally.shift or not count)) or items > capacity or capacity > _MOST_CAPACITY or at % word or at < head:
        return
    index = blocks.find(at - head)
    wanted = head + max(capacity, 1) * word
    if index >= 0 and blocks.address(index) == at - head and 0 <= blocks.size(index) - wanted <= max(wanted // 4, 4 * word):
        _claim(blocks, tally, claims, index, head // word + items + 1)


def _claim_buffer(
    blocks: Blocks, word: int, contents: int, address: int, words: Sequence[int], tally: ObjectTally, claims: array[int]
) -> None:
    """See claim_buffer in cpython_storage.c."""
    index = blocks.find(address) if address and not address % word else -1
    if index < 0 or blocks.address(index) != address:
        return
    size, item, used = blocks.size(index), word, 0
    count, room = words[2], words[3] if contents == BYTES else words[4]
    if contents == ARRAY:
        while room <= size and room * item > size:
            item //= 2
        used = count * item
        if count > room or room > size:
            return
    elif contents == BYTES:
        used = (words[5] - address & (1 << 8 * word) - 1) + count & (1 << 8 * word) - 1
        if room > size or count >= room or used >= room:
            return
    elif contents == POINTERS:
        used = count * word
        if count > size // word:
            return
    first = -(-used // word)
    if first < _MOST_CAPACITY:
        _claim(blocks, tally, claims, index, _RAW | (0 if contents == CHILDREN else first + 1))


def _after_children(words: Sequence[int], word: int, start: int) -> int:
    """See after_children in cpython_storage.c; -1 instead of NO_WORD."""
    if len(words) < _CHILDREN_AT:
        return -1
    inside = words[3] == start + _CHILDREN_AT * word
    return _CHILDREN_AT + words[1] if inside and words[1] <= _CHILDREN_AT else -1 if inside else _CHILDREN_AT


def _claim_keys(blocks: Blocks, word: int, keys: int, tally: ObjectTally, claims: array[int]) -> None:
    index = -1 if keys % word else blocks.find(keys)
    if index >= 0 and blocks.address(index) == keys:
        _claim(blocks, tally, claims, index, _KEYS)


def _claim_set(blocks: Blocks, word: int, entries: int, at: int, tally: ObjectTally, claims: array[int]) -> None:
    index = -1 if at % word or entries >> 32 else blocks.find(at)
    wanted = 2 * word * entries
    is_table = entries >= 8 and not entries & (entries - 1)
    if is_table and index >= 0 and blocks.address(index) == at and 0 <= blocks.size(index) - wanted <= wanted // 4 + 4 * word:
        _claim(blocks, tally, claims, index, _SET)


def _find_keys(words: Sequence[int], data: memoryview, word: int, size: int) -> tuple[int, int]:
    """Return the numbers of the first word with a hash, and of the first word after the keys of a
    dictionary; (0, -1) if these are no keys. See find_keys in cpython_storage.c."""
    slots, kind = words[1], 0
    head = 5 * word + slots * (4 if slots >> 16 else 2 if slots >> 8 else 1)
    if slots < 8 or slots & (slots - 1) or slots >> 32 or words[2] < _LOWEST_OBJECT:
        log_slots, length, kind = data[word : word + 3]
        if log_slots > 32 or length > 36 or length < log_slots or kind > 2:
            return 0, -1
        slots, head = 1 << log_slots, 4 * word + (1 << length)
    end = head + slots * 2 // 3 * (2 if kind else 3) * word
    return (end if kind else head) // word, -1 if end > size else end // word


def _claim_values(blocks: Blocks, word: int, values: int, tally: ObjectTally, claims: array[int]) -> None:
    index = blocks.find(values) if values and not values % word else -1
    prefix = values - blocks.address(index) if index >= 0 else 0
    if prefix and prefix <= MOST_PREFIX and not prefix % word:
        _claim(blocks, tally, claims, index, _PREFIX | prefix // word)


def _claim_dict_values(blocks: Blocks, word: int, values: int, kind: int, tally: ObjectTally, claims: array[int]) -> None:
    """See claim_dict_values in cpython_storage.c."""
    if kind in (VALUES, TAGGED):
        _claim_values(blocks, word, values, tally, claims)
        return
    index = blocks.find(values) if values and not values % word else -1
    if index >= 0 and blocks.address(index) == values:
        _claim(blocks, tally, claims, index, _PREFIX if kind else _OLD_VALUES)


def _find_old_values(word: int, size: int) -> int:
    """See find_old_values in cpython_storage.c."""
    counts = (slots * 2 // 3 for slots in (8, 16, 32))
    return next((count for count in counts if count % 2 and size == (count + 1) * word), 0)


def _is_deque(items: int, first_block: int, last_block: int, first: int, last: int) -> bool:
    between = items + first - last - 1
    if first >= _CHUNK_ITEMS or last >= _CHUNK_ITEMS or items >> 32:
        return False
    return between == 0 if first_block == last_block else 0 < between <= 1 << 33 and not between % _CHUNK_ITEMS


def _claim_deque(blocks: Blocks, word: int, fields: list[int], tally: ObjectTally, claims: array[int]) -> None:
    _, first_block, last_block, first, last = fields
    if not _is_deque(*fields):
        return
    if first_block == last_block:
        _claim_chunk(blocks, word, first_block, first + 1, last + 2, tally, claims)
    else:
        _claim_chunk(blocks, word, first_block, first + 1, _CHUNK_WORDS, tally, claims)
        _claim_chunk(blocks, word, last_block, 0, last + 2, tally, claims)


def _claim_chunk(blocks: Blocks, word: int, address: int, front: int, back: int, tally: ObjectTally, claims: array[int]) -> None:
    index = -1 if address % word else blocks.find(address)
    if index >= 0 and blocks.address(index) == address and _CHUNK_WORDS * word <= blocks.size(index) <= _CHUNK_WORDS * word * 5 // 4:
        _claim(blocks, tally, claims, index, _CHUNK | back << 8 | front)


def _claim(blocks: Blocks, tally: ObjectTally, claims: array[int], index: int, claim: int) -> None:
    if blocks.state(index) == State.IN_USE and tally.found[index] == NO_OBJECT:
        before = claims[index]
        other = (before ^ claim) & (_PREFIX | _CHUNK | _KEYS | _SET | _RAW) or (claim & _CHUNK and claim != before)
        disputed = before and (other or before == _DISPUTED)
        claims[index] = _DISPUTED if disputed else max(before, claim)


def _is_value(head: memoryview, number: int) -> bool:
    """Return whether the value with this number may be in use. `head`: the part of the
    block before the values. See is_value in cpython_storage.c."""
    used = head[-2] if len(head) > 2 else 0
    order = bytes(head[:-2][-used:]) if used else b""
    return number in order or used > len(order)


def unused_storage(
    engine: PureEngine, blocks: Blocks, piece: Piece, tally: ObjectTally, claims: array[int], tails: bytes, heads: bytearray
) -> array[int]:
    """See storage.py and fl_unused_storage."""
    word, rest = engine.arch.word, array("Q")
    for one in blocks_in(engine, blocks, piece):
        claim = claims[one.number]
        if not claim or claim == _DISPUTED or tally.patterns[one.number]:
            continue
        words = engine.arch.unpack(bytes(one.data[: len(one.data) // word * word]))
        if claim in (_PREFIX, _OLD_VALUES):
            is_old, whole = claim == _OLD_VALUES, one.size // word * word
            end = _find_old_values(word, whole) if is_old else find_values(one.data, word, whole) if words else 0
            place = end if is_old else ROW + end
            if end and heads[place] >= WANTED:
                heads[place] = WANTED
            elif end:
                tally.patterns[one.number] = heads[place]
            continue
        if claim & _PREFIX:
            prefix = claim & ~_PREFIX
            if prefix <= one.size // word and prefix <= len(words) and one.data[prefix * word - 1] == prefix * word:
                last = one.size // word - 1
                ends = prefix < last < LAST_WORD and last < len(words) and blocks.find(words[last]) >= 0
                ends = ends and not _is_value(one.data[: prefix * word], last - prefix)
                head = ROW * prefix + (last if ends else 0)
                if heads[head] >= WANTED:
                    heads[head] = WANTED
                else:
                    tally.patterns[one.number] = heads[head]
            continue
        if claim & _CHUNK:
            whole = one.size // word
            for begin, end in ((0, claim & 0xFF), (claim >> 8 & 0xFF, whole)) if len(words) == whole else ():
                if any(blocks.find(value) >= 0 for value in words[begin:end]):
                    rest.extend((one.start + begin * word, one.start + end * word))
            continue
        if claim == _SET:
            whole = one.size // word
            end = 1 << whole.bit_length() - 1  # the table is the largest power of two that fits
            rest.extend(_hashes(blocks, word, one.start, words, range(1, min(len(words), end), 2)))
            if len(words) == whole and any(blocks.find(value) >= 0 for value in words[end:]):
                rest.extend((one.start + end * word, one.start + whole * word))
            continue
        first, head = (claim & ~_RAW) - 1, 1 if tally.shift else 0
        if claim == _KEYS:
            hashes, first = _find_keys(words, one.data, word, one.size // word * word) if len(words) >= 4 else (0, -1)
            rest_of_block = one.size // word - first
            if first < 0 or rest_of_block * word > first * word // 4 + 4 * word or len(words) < one.size // word:
                continue
            rest.extend(_hashes(blocks, word, one.start, words, range(hashes, first, 3)))
            if not rest_of_block:
                continue
        elif claim == _RAW:
            first = _after_children(words, word, one.start)
            if not 0 <= first < one.size // word:
                continue
        elif first >= one.size // word or not (
            claim & _RAW or all(_is_item(blocks, word, words[at], tally) for at in _sample(head, first) if at < len(words))
        ):
            continue
        if first < LAST_WORD:
            tally.patterns[one.number] = tails[first]
        elif any(blocks.find(value) >= 0 for value in words[first:]):
            rest.extend((one.start + first * word, one.start + one.size // word * word))
    return rest


def _hashes(blocks: Blocks, word: int, start: int, words: Sequence[int], places: Iterable[int]) -> Iterator[int]:
    """Yield start and end of each word, of those at `places`, that is an address in a block."""
    for at in places:
        if blocks.find(words[at]) >= 0:
            yield from (start + at * word, start + (at + 1) * word)


def _sample(first: int, end: int) -> list[int]:
    places = range(first, end)
    return [*places] if end - first <= 2 * _SAMPLE else [*places[:_SAMPLE], *places[-_SAMPLE:]]


def _is_item(blocks: Blocks, word: int, value: int, tally: ObjectTally) -> bool:
    if not value:
        return True
    if value % word or value < _LOWEST_OBJECT:
        return False
    index = blocks.find(value)
    if index < 0:
        return True
    number = tally.found[index]
    return number != NO_OBJECT and value - blocks.address(index) + tally.shift == tally.offsets[number]
