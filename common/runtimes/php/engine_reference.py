"""Recognise PHP's values in Python: the reference for common/native/php_values.c and
php_stale.c."""

from __future__ import annotations

from array import array

from findleaks.engine.contract import Blocks
from findleaks.engine.reference.engine import PureEngine
from findleaks.engine.terms import State
from findleaks.runtimes.php.engine import (
    ARRAYS,
    ELEMENTS,
    LEAF,
    MOST_USED,
    NO_VALUE,
    REFERENCES,
    RESOURCES,
    STRINGS,
    SUMS,
    VALUE,
    Values,
    rank_of,
)
from findleaks.target.base import Piece

TYPE, UNDEFINED, TRUE = 8, 0, 3  # offset of the type in a value, types
TYPE_MASK, FLAGS = 15, 0x3F0
STRING, ARRAY, RESOURCE, REFERENCE, UNCOLLECTABLE = 6, 7, 9, 10, 0x10


class _Head:
    """The head of the value in a block, and the bytes after it."""

    def __init__(self, data: memoryview, word: int, order: str) -> None:
        self.data, self.width, self.order = data, word, order

    def half(self, offset: int) -> int:
        """Return the 32-bit number at an offset."""
        return int.from_bytes(self.data[offset : offset + 4], self.order)  # type: ignore[arg-type]

    def word(self, offset: int) -> int:
        """Return the word at an offset."""
        return int.from_bytes(self.data[offset : offset + self.width], self.order)  # type: ignore[arg-type]

    def is_string(self) -> bool:
        characters = 8 + 2 * self.width
        hash_, length = self.word(8), self.word(8 + self.width)
        if hash_ and not hash_ >> (8 * self.width - 1):
            return False
        return length < len(self.data) - characters and not self.data[characters + length]

    def is_array(self) -> bool:
        slots, elements = -self.half(12) & 0xFFFFFFFF, self.word(16)
        used, count, places = (self.half(16 + self.width + at) for at in (0, 4, 8))
        powers = slots >= 2 and not slots & (slots - 1) and places and not places & (places - 1)
        return bool(powers and count <= used <= places and elements and elements % self.width == 0)

    def number(self) -> int:
        """Return the number of the value's type, or NO_VALUE."""
        count, kind, size = self.half(0), self.half(4), len(self.data)
        if not 0 < count < 1 << 31:
            return NO_VALUE
        if kind & ~FLAGS == STRING and self.is_string():
            return STRINGS
        if kind & TYPE_MASK == ARRAY and size == (56 if self.width == 8 else 48) and self.is_array():
            return ARRAYS + rank_of(self.half(20 + self.width))
        if kind == REFERENCE | UNCOLLECTABLE and size == 32:
            return REFERENCES
        return RESOURCES if kind == RESOURCE | UNCOLLECTABLE and size == (32 if self.width == 8 else 24) else NO_VALUE


def find_values(engine: PureEngine, blocks: Blocks, piece: Piece, values: Values) -> array[int]:
    """See engine.py."""
    word, end = engine.arch.word, piece.address + len(piece.data)
    cut: array[int] = array("Q")
    for index in range(blocks.at_or_after(piece.address), len(blocks)):
        start, size = blocks.address(index), blocks.size(index)
        if start >= end:
            break
        if blocks.state(index) != State.IN_USE or size <= 8 + 2 * word or start % word or values.found[index] != NO_VALUE:
            continue
        if end - start < size:
            cut.append(start)
            continue
        head = _Head(piece.data[start - piece.address : start - piece.address + size], word, engine.arch.byteorder)
        number = head.number()
        if number == NO_VALUE:
            continue
        values.found[index] = number
        values.sums[SUMS * number] += 1
        values.sums[SUMS * number + 1] += size
        if number == STRINGS:
            values.patterns[index] = LEAF
        if number >= ARRAYS:
            values.sums[SUMS * number + 1] += _mark_elements(blocks, head, values)
    return cut


def _mark_elements(blocks: Blocks, head: _Head, values: Values) -> int:
    """Set the type of the block that contains the hash slots and elements of an array. Also set the
    pattern or the unused memory of this block, and append the elements to `values.runs`. Return the
    size of the block; 0 if the array has no such block."""
    elements, slots = head.word(16), -head.half(12) & 0xFFFFFFFF
    target = blocks.find(elements)
    if target < 0 or blocks.state(target) != State.IN_USE or values.found[target] != NO_VALUE:
        return 0
    if elements - blocks.address(target) != 4 * slots:
        return 0
    values.found[target] = ELEMENTS
    size, used, places = blocks.size(target), head.half(16 + head.width), head.half(24 + head.width)
    bucket = 16 + 2 * head.width
    stride = 16 if 4 * slots + places * bucket > size else bucket
    number = min(used, (size - 4 * slots) // stride)
    if number > 0:
        values.runs.extend((elements, number, stride))
    words = -(-(4 * slots + used * stride) // head.width)
    if words <= MOST_USED:
        values.patterns[target] = LEAF + words
    elif words * head.width < size:
        start = blocks.address(target)
        values.unused.extend((start + words * head.width, start + size))
    return size


def sort_runs(engine: PureEngine, runs: array[int]) -> None:
    """Sort runs by their start, and cut off what overlaps with the next run; see engine.py."""
    runs[:] = array("Q", (word for run in sorted(zip(runs[::3], runs[1::3], runs[2::3])) for word in run))
    for at in range(0, len(runs) - 3, 3):
        runs[at + 1] = min(runs[at + 1], (runs[at + 3] - runs[at]) // runs[at + 2])


def find_stale(engine: PureEngine, blocks: Blocks, piece: Piece, runs: array[int]) -> array[int]:
    """Find the stale parts of runs in one piece; see engine.py."""
    word, order, end = engine.arch.word, engine.arch.byteorder, piece.address + len(piece.data)
    stale: array[int] = array("Q")
    for start, count, stride in zip(runs[::3], runs[1::3], runs[2::3]):
        last, skipped = 0, max(0, -(-(piece.address - start) // stride))
        for place in range(start + skipped * stride, min(start + count * stride, end - stride + 1), stride):
            data = piece.data[place - piece.address : place - piece.address + stride]
            kind = int.from_bytes(data[TYPE : TYPE + 4], order) & 0xFF
            if kind > TRUE:
                continue
            length = stride if kind == UNDEFINED else VALUE if stride == VALUE else TYPE
            addresses = (int.from_bytes(data[at : at + word], order) for at in (0, *range(VALUE, length, word)))
            if last != place and not any(address and blocks.find(address) >= 0 for address in addresses):
                continue
            last = place + length
            if stale and stale[-1] == place:
                stale[-1] = last
            else:
                stale.extend((place, last))
    return stale
