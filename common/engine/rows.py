"""Blocks that pass filters, as rows of text made many at a time: the contract of
common/kernel/rows.c.

The kernel makes rows that need only a block's own words and tables; the others it leaves to its
caller, which makes every row if there is no kernel."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from findleaks.target.base import Piece, Range

UNWANTED, NO_ARRAY = 1 << 31, 1 << 30
"""Bits of a text's number: rows with it are filtered out; objects of this type are not in
arrays."""

NO_TEXT = NO_ARRAY - 1

STATES = 8
"""Number of the first texts: the five kinds of blocks in use, and the three other states."""

MAX_WORDS = 1 << 16
"""Words whose types are cached; beyond these, blocks are left to the caller."""


class Texts:
    """Texts by number, in ASCII."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ends: array[int] = array("Q")

    def add(self, text: str) -> int:
        """Add a text; returns its number."""
        self.data += text.encode("ascii")
        self.ends.append(len(self.data))
        return len(self.ends) - 1


class RowRules:
    """Filters and texts of rows. `states` and `kinds`: a bit for each wanted; `low` to `high`:
    usable sizes. `owners`: sorted, disjoint ranges; `owner_texts`: the number of each one's text
    (UNWANTED: none of its blocks), `no_owner`: that of other blocks. Words that point into `tables`
    may identify a type. `mapped`: sorted, disjoint ranges of all readable memory. `untyped`:
    UNWANTED, or 0. `string`: the text for "std::string". `characters`: for each of the first
    65,536, 0 if unprintable, else 1 + columns; empty: not available, so that non-ASCII text is left
    to the caller."""

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
        """Set the text for a word that points into `tables`: its number or NO_TEXT, with UNWANTED
        and NO_ARRAY."""
        at = bisect_left(self.words, word)
        if len(self.words) < MAX_WORDS and (at == len(self.words) or self.words[at] != word):
            self.words.insert(at, word)
            self.word_texts.insert(at, number)


class RowBatch(NamedTuple):
    """`text`: whole lines. `at`: where to continue; `rare`: the block there is left to the caller.
    `rows`: their number, without that one."""

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
    """Rows of one graph's blocks, once classified. `pieces` ascend; `order` ("I"), if any, has the
    blocks' indices from `at` to `end`."""

    rules: RowRules

    def use(self, pieces: Sequence[Piece]) -> None:
        """Set the memory to read from now on: a block that is not in it is left to the caller."""
        ...

    def format(self, order: array[int] | None, at: int, end: int, limit: int) -> RowBatch:
        """The next rows, `limit` at most."""
        ...

    def select(self, at: int, end: int) -> Selected:
        """The next blocks that pass the filters."""
        ...

    def largest_first(self, indices: array[int]) -> Iterator[array[int]]:
        """Sort these indices by size, stable, step by step: the last result is sorted. Overwrites
        `indices`."""
        ...
