"""Format the blocks that pass filters, many at a time, as rows of JSON or as columns
(common/native/rows.c).

The C engine formats a row if it needs only the words of the block, and tables that the caller
passed. It leaves other rows to the caller.

A *text* is a string that occurs in many rows, such as the name of a type. Rows refer to texts by
number."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from findleaks.engine.columns import Numbers
from findleaks.target.base import Piece, Range

# Flags in the number of a text: hide the row; the type cannot be that of an array's element.
UNWANTED, NO_ARRAY = 1 << 31, 1 << 30
NO_TEXT = NO_ARRAY - 1

STATES = 8  # number of predefined texts: five kinds of blocks in use, three states
MAX_WORDS = 1 << 16  # most first words whose types are cached; the caller gets other blocks


class Texts:
    """ASCII strings, numbered in the order of adding."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ends: array[int] = array("Q")

    def add(self, text: str) -> int:
        """Add a text; return its number."""
        self.data += text.encode("ascii")
        self.ends.append(len(self.data))
        return len(self.ends) - 1


class RowRules:
    """Filters and texts of rows.

    - `states`, `kinds`: a bit for each wanted state or kind; `low` to `high`: usable sizes.
    - `owners`: sorted, disjoint ranges, with `owner_texts` (numbers of texts; UNWANTED hides the
      blocks); `no_owner`: the text of other blocks.
    - `tables`: words that point into these may identify a type.
    - `mapped`: sorted, disjoint ranges of all readable memory.
    - `untyped`: UNWANTED, or 0. `string`: the text for "std::string".
    - `label_texts`: numbers of texts, with UNWANTED, by label of the graph (see Graph.set_labels).
      If empty, blocks with labels get types like other blocks.
    - `marks`: for each block, a claim (engine/type_spread.py), with a number in the low 24 bits, 0
      for none. `mark_texts` has three texts for number n, from 3 * n on: for claims that are
      certain, for inferred ones, and for those by a hint. NO_BLOCK leaves such blocks to the
      caller. The class that a block's first word identifies takes precedence over the mark. If
      empty, there are no marks.
    - `characters`: a number for each of the first 65,536 characters: 0 if it is unprintable,
      otherwise 1 + the columns that it takes. If empty, rows with non-ASCII text are left to the
      caller."""

    def __init__(self, states: int, kinds: int, sizes: tuple[int, int], tables: Sequence[Range], typed: bool) -> None:
        self.states, self.kinds, self.tables, self.typed = states, kinds, tables, typed
        self.low, self.high = sizes
        self.texts = Texts()
        self.owners: list[Range] = []
        self.owner_texts: array[int] = array("I")
        self.mapped: Sequence[Range] = []
        self.label_texts: array[int] = array("I")
        self.marks: Numbers = array("I")
        self.mark_texts: array[int] = array("I")
        self.characters = bytearray()
        self.no_owner = self.untyped = self.string = 0
        self.words: array[int] = array("Q")
        self.word_texts: array[int] = array("I")

    def learn(self, word: int, number: int) -> None:
        """Set the text of a first word that points into `tables`: the number of the text or
        NO_TEXT, with the flags UNWANTED and NO_ARRAY."""
        at = bisect_left(self.words, word)
        if len(self.words) < MAX_WORDS and (at == len(self.words) or self.words[at] != word):
            self.words.insert(at, word)
            self.word_texts.insert(at, number)


class RowBatch(NamedTuple):
    """`rows` lines of `text`. `at` is the index at which to continue. If `rare` is set, the block
    at `at` is left to the caller."""

    text: str
    at: int
    rare: bool
    rows: int


class RowColumns(NamedTuple):
    """Columns of rows, of equal length; `at` and `rare` as in RowBatch.

    `names` has one number for each row, which combines its three texts; see `unpack_names`. If
    hints[i] says that row i has text, it is text[hint_ends[i - 1]:hint_ends[i]], undecoded
    UTF-8."""

    indices: memoryview  # "I"
    addresses: memoryview  # "Q"
    sizes: memoryview  # "Q": usable bytes
    names: memoryview  # "Q"
    hints: memoryview  # "B": values of Hint
    hint_ends: memoryview  # "I"
    text: bytes
    at: int
    rare: bool

    @property
    def rows(self) -> int:
        return len(self.indices)


class Hint(IntEnum):
    """Kind of text in the first bytes of a block (see block_types/text.py)."""

    NONE = 0
    ZEROS = 1
    TEXT = 2
    SECOND = 3  # text after the first word of the block


def unpack_names(number: int) -> tuple[int, int, int]:
    """Return the numbers of three texts: kind or state, owner, and type (NO_TEXT if unknown)."""
    return number & 7, number >> 3 & NO_TEXT, number >> 33


class Selected(NamedTuple):
    """Block indices ("I") and usable bytes; `at` and `rare` as in RowBatch."""

    indices: array[int]
    bytes: int
    at: int
    rare: bool


class Rows(Protocol):
    """Rows of a graph's classified blocks. `at` and `end` are positions in `order` ("I"). Without
    `order`, they are block indices."""

    rules: RowRules

    def use(self, pieces: Sequence[Piece]) -> None:
        """Set the memory to read (ascending). Blocks outside this memory are left to the caller."""
        ...

    def format(self, order: array[int] | None, at: int, end: int, limit: int) -> RowBatch:
        """Return the next rows, at most `limit`."""
        ...

    def columns(self, order: array[int] | None, at: int, end: int, limit: int) -> RowColumns:
        """Return the next rows as columns, at most `limit`. They are valid until the next call."""
        ...

    def select(self, at: int, end: int) -> Selected:
        """Return the next blocks that pass the filters."""
        ...

    def largest_first(self, indices: array[int]) -> Iterator[array[int]]:
        """Sort indices by size, largest first, stably. Yields after each step; the last result is
        sorted. Overwrites `indices`."""
        ...
