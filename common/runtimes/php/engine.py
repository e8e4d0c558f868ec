"""Recognise PHP's values in the blocks of Zend's memory manager by their heads.

engine_native.py (common/native/php_values.c) and engine_reference.py implement this."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol, cast

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.dominators import NO_ROOT
from findleaks.engine.loops import import_loops
from findleaks.target.base import Piece

NO_VALUE = NO_ROOT  # in `found`: the block has no value that is recognised
LEAF = 1  # in `patterns`: the block has a value without pointers
MOST_USED = 62
"""In `patterns`, LEAF + n (1 <= n <= MOST_USED) means that only the first n words of the block are
used. The other words are stale. An exclusion cannot begin after more than MOST_USED words."""

STRINGS, REFERENCES, RESOURCES, ELEMENTS, ARRAYS = range(5)
"""Numbers of types. An array has the number ARRAYS + rank_of(its length)."""
RANKS = 44
OBJECTS = ARRAYS + RANKS
"""The lowest number that a class can have."""
VALUE = 16  # bytes of a value (zval)
SUMS = 2  # words in `sums` for each type: number of values, and their bytes


class Values(NamedTuple):
    """The values that were recognised.

    `found` has the number of the type of each block's value, or NO_VALUE. `patterns` has LEAF for
    each block with a string, LEAF + n for each block with elements of an array that use n words,
    and 0 for other blocks (see Graph.exclude_words). `sums` has SUMS words for each type with a
    number below OBJECTS. The bytes of an array include its elements. If the elements of an array
    use more than MOST_USED words, `unused` has start and end of the unused memory after them. For
    each array, `runs` has its elements (see find_stale)."""

    found: array[int]  # "I"
    patterns: bytearray
    sums: array[int]  # "Q"
    unused: array[int]  # "Q"
    runs: array[int]  # "Q"

    @classmethod
    def of(cls, blocks: Blocks) -> Values:
        """Return empty columns, in which no value is recognised yet."""
        found, sums = array("I", [NO_VALUE]) * len(blocks), array("Q", bytes(8 * SUMS * OBJECTS))
        return cls(found, bytearray(len(blocks)), sums, array("Q"), array("Q"))


def rank_of(length: int) -> int:
    """Return the rank of an array's length. For a length up to 15, the rank is the length. Longer
    arrays have one rank for each power of two: 16 for lengths 16 to 31, 17 for 32 to 63."""
    return length if length < 16 else 11 + length.bit_length()


def name_rank(rank: int) -> str:
    """Return the lengths of a rank as text: "3", or "16–31"."""
    return str(rank) if rank < 16 else f"{1 << (rank - 12):,}–{(1 << (rank - 11)) - 1:,}"


def find_values(engine: Engine, blocks: Blocks, piece: Piece, values: Values) -> array[int]:
    """Add the values in the blocks in use that start in `piece`.

    Pass each byte of PHP's memory in one piece, and pieces in any order. Returns the addresses of
    blocks that continue after the piece. For each of these, call again with a piece that contains
    the whole block."""
    return cast(_Loops, import_loops(engine, "findleaks.runtimes.php")).find_values(engine, blocks, piece, values)


def find_stale(engine: Engine, blocks: Blocks, pieces: Iterable[Piece], runs: array[int]) -> array[int]:
    """Return start and end of each part of `runs` ("Q") that is stale and refers to a block.

    A run is the address of its first value (zval), the number of values, and the bytes from one to
    the next. They are sorted in place, and cut off where the next run begins, so that damaged
    memory takes bounded time. If the type of a value is undefined, null, false or true, its first
    word is stale. If it is undefined, the key that follows is stale too."""
    loops = cast(_Loops, import_loops(engine, "findleaks.runtimes.php"))
    loops.sort_runs(engine, runs)
    stale = array("Q")
    for piece in pieces if runs else ():
        stale.extend(loops.find_stale(engine, blocks, piece, runs))
    return stale


class _Loops(Protocol):
    """The interface of engine_native.py and of its reference, engine_reference.py."""

    def find_values(self, engine: Any, blocks: Any, piece: Piece, values: Values) -> array[int]: ...

    def sort_runs(self, engine: Any, runs: array[int]) -> None: ...

    def find_stale(self, engine: Any, blocks: Any, piece: Piece, runs: array[int]) -> array[int]: ...
