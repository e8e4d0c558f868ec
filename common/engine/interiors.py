"""Interior references to possible blocks, counted by offset and block size; those that a rule names
become start references.

A *key* is block index << 32 | offset in bytes, for a reference into a possible block from a root or
from a reachable or possible block. A *rule* is a pair (size, offset): pointers to this offset of
blocks of this usable size (0: any) count as pointers to their start."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Optional, Protocol

from findleaks.engine.interior_structures import Examination
from findleaks.engine.terms import Totals
from findleaks.target.base import Piece, Range
from findleaks.value_classes import NamedTuple

MAX_OFFSET = (1 << 32) - 1  # any offset from here on; no rule names it
LOW_BITS = MAX_OFFSET  # in a Row: any offset below two words, as tags make it
Rule = tuple[int, int]


class Row(NamedTuple):
    """`blocks` of `size` (0: all sizes) have a pointer to `offset`; offset 0: blocks examined;
    offset LOW_BITS: blocks with a pointer to any offset below two words."""

    size: int
    offset: int
    blocks: int


class Interiors(Protocol):
    """Of a graph with Heuristic.AUTO. Order: `examine`, all steps, and `promote` until done, if
    structures count; `keys` until done, `count` over all, sorted and each once, `accept` and
    `promote` until each is done, `effect`."""

    def places(self, most: int) -> Optional[array[int]]:
        """Of the references to possible blocks, if at most `most`, three numbers each: the block
        they are stored in (NO_BLOCK: none), else the address of the root word, and the block."""
        ...

    def examine(self, pieces: Sequence[Piece], code: Sequence[Range], credit: int, php: bool) -> Examination:
        """Look for known structures (interior_structures.py). `pieces`: memory, ascending, of all
        that `places` names at least; `code`: sorted ranges of executable memory; `credit`: most
        bytes read of tables' control bytes, in all."""
        ...

    def keys(self, budget: int) -> tuple[array[int], bool]:
        """Keys ("Q", unsorted, repeated) of the next `budget` references; whether none is left."""
        ...

    def count(self, keys: array[int]) -> None:
        """Count the blocks of these keys, which ascend and differ."""
        ...

    def rows(self, least: int) -> list[Row]:
        """Rows with at least `least` blocks; by size, then offset."""
        ...

    def held(self, sizes: Sequence[int], counts: array[int], first: int, budget: int) -> int:
        """Count the reachable and possible ones of `budget` blocks from index `first` into `counts`
        ("Q", one for each of `sizes`, which ascend, and one for all); the next index."""
        ...

    def accept(self, rules: Sequence[Rule], budget: int) -> bool:
        """Apply ascending rules to the next `budget` references; True when none is left."""
        ...

    def promote(self, budget: int) -> bool:
        """Visit about `budget` possible blocks that became reachable; True when all are marked."""
        ...

    def effect(self, keys: array[int], rules: Sequence[Rule]) -> list[Totals]:
        """By rule, the keys' blocks that `promote` made reachable. Each counts once, under its
        first key with a rule; a rule for any size precedes one for its own."""
        ...
