"""Classify the words of blocks (WordClass), in pure Python. The C engine has the same code in
common/native/type_features.c."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from findleaks.engine.reference.type_match import is_text
from findleaks.engine.type_spread import SMALL_NUMBER, WordClass
from findleaks.target.ranges import range_at

if TYPE_CHECKING:
    from findleaks.engine.reference.type_spread import PureTypeSpread


def group_by_classes(spread: PureTypeSpread, indices: array[int], words: int) -> tuple[array[int], array[int]]:
    """Group blocks by their size and the classes of their first words. TypeSpread explains the
    result."""
    rows = dict.fromkeys(made := [_classify_block(spread, index, words) for index in indices])
    return array("I", map(dict(zip(rows, range(len(rows)))).__getitem__, made)), array("Q", [one for row in rows for one in row])


def _classify_block(spread: PureTypeSpread, index: int, words: int) -> tuple[int, ...]:
    """Return the size of a block, and the classes of its first words."""
    size, start, word = spread.blocks.size(index), spread.blocks.address(index), spread.blocks.arch.word
    data = (spread.memory.bytes(start + at, word) if at + word <= size else None for at in range(0, words * word, word))
    return (size, *(WordClass.MISSING if one is None else _classify_word(spread, one) for one in data))


def _classify_word(spread: PureTypeSpread, data: bytes) -> int:
    value = int.from_bytes(data, spread.blocks.arch.byteorder)
    if value < SMALL_NUMBER:
        return WordClass.SMALL if value else WordClass.ZERO
    index = spread.used_block(value)
    if index >= 0:
        offset = value - spread.blocks.address(index)
        return WordClass.BLOCK_MIDDLE | offset << 4 if offset else WordClass.BLOCK_START | spread.blocks.size(index) << 4
    if range_at(spread.mapped, value) is not None:
        sort = WordClass.STATIC if range_at(spread.code, value) is None else WordClass.CODE
        return sort | value << 4 & (1 << 64) - 1
    return WordClass.TEXT if is_text(data) else WordClass.NUMBER
