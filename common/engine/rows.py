"""Blocks that pass filters, as rows of text made many at a time: the contract of common/kernel/rows.c.

The kernel makes the rows that take no more than a look at a block's own words and at what is known already; the others it leaves to its
caller, which makes every row where there is no kernel.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from findleaks.target.base import Piece, Range

UNWANTED, NO_ARRAY = 1 << 31, 1 << 30
"""Bits of a text's number: no such row is wanted; objects of what this word tells do not stand in arrays."""

NO_TEXT = NO_ARRAY - 1

STATES = 8
"""Texts that come first: of the five kinds of blocks in use, and of the three other states."""

MOST_WORDS = 1 << 16
"""Words whose types are kept. Of more, each block is left to the caller."""


class Texts:
    """Texts by number, in ASCII."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ends: array[int] = array("Q")

    def add(self, text: str) -> int:
        """The number of one more."""
        self.data += text.encode("ascii")
        self.ends.append(len(self.data))
        return len(self.ends) - 1


class RowRules:
    """Which rows are wanted, and what they say. `states` and `kinds` have a bit for each wanted; `low` to `high` are usable sizes.
    `owners` are sorted, disjoint ranges with the number of the text of each (UNWANTED: none of its blocks), `no_owner` is that of none.
    Words that point into `tables` may tell a type. `mapped`: all memory that can be read lies in these, sorted
    and disjoint. `untyped`: UNWANTED, or 0. `string`: the text of "std::string". `characters`: of each of
    the first 65,536, 0 if it is not printable, else 1 and its columns; empty: not known, so that text with such is left to the caller."""

    def __init__(self, states: int, kinds: int, sizes: tuple[int, int], tables: Sequence[Range], typed: bool) -> None:
        self.states, self.kinds, self.tables, self.typed = states, kinds, tables, typed
        self.low, self.high = sizes
        self.texts = Texts()
        self.owners: list[Range] = []
        self.owner_texts: array[int] = array("I")
        self.mapped: Sequence[Range] = []
        self.characters = bytearray()
        self.no_owner = self.untyped = self.string = 0
        self.words: array[int] = array("Q")
        self.word_texts: array[int] = array("I")

    def learn(self, word: int, number: int) -> None:
        """What a word that points into `tables` tells: a text's number or NO_TEXT, with UNWANTED and NO_ARRAY."""
        at = bisect_left(self.words, word)
        if len(self.words) < MOST_WORDS and (at == len(self.words) or self.words[at] != word):
            self.words.insert(at, word)
            self.word_texts.insert(at, number)


class RowBatch(NamedTuple):
    """`text`: whole lines. `at`: where to go on; `rare`: that block is for the caller. `rows`: how many were wanted, without that one."""

    text: str
    at: int
    rare: bool
    rows: int


class Selected(NamedTuple):
    """`indices` ("I") of blocks, their usable bytes, and `at` and `rare` as in RowBatch."""

    indices: array[int]
    bytes: int
    at: int
    rare: bool


class Rows(Protocol):
    """Of one graph's blocks, once it is classified. `pieces` ascend; `order`, if there is one ("I"), has the blocks' indices, from `at` to
    `end`, instead of themselves."""

    rules: RowRules

    def use(self, pieces: Sequence[Piece]) -> None:
        """The memory to look at from now on: a block that does not lie in it is left to the caller."""
        ...

    def format(self, order: array[int] | None, at: int, end: int, limit: int) -> RowBatch:
        """The next rows, `limit` at most."""
        ...

    def select(self, at: int, end: int) -> Selected:
        """The next blocks that pass."""
        ...

    def largest_first(self, indices: array[int]) -> Iterator[array[int]]:
        """These indices ordered by size, among equals as they are, step by step: the last is the result. Uses `indices` up."""
        ...
