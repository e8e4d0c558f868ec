"""Interior references to possible blocks, counted by offset and block size. Those that a rule
matches become start references.

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

MAX_OFFSET = (1 << 32) - 1  # in place of all larger offsets; no rule names it
LOW_BITS = MAX_OFFSET  # in a Row: any offset below two words, as pointer tags produce
Rule = tuple[int, int]


class Row(NamedTuple):
    """A count of blocks.

    `blocks` blocks of `size` (0: all sizes) are referred to at `offset`. With offset 0 it is the
    number of blocks examined; with LOW_BITS, that of blocks with a pointer to any offset below two
    words."""

    size: int
    offset: int
    blocks: int


class Interiors(Protocol):
    """The interior references of a graph with Heuristic.AUTO.

    Order of calls: if structures count, `examine`, all its steps, and `promote` until done. Then
    `keys` until done, `count` over all keys, sorted and each once, `accept` and `promote` until
    each is done, `effect`."""

    def places(self, most: int) -> Optional[array[int]]:
        """Return three numbers for each reference to a possible block, or None if there are more
        than `most`.

        The numbers are the block that contains the reference (NO_BLOCK: none), the address of the
        root word (if there is no such block), and the block referred to."""
        ...

    def examine(self, pieces: Sequence[Piece], code: Sequence[Range], credit: int, php: bool) -> Examination:
        """Return a search for known structures (interior_structures.py).

        `pieces` is memory, ascending, with at least everything that `places` names. `code` has
        sorted ranges of executable memory. `credit` is the maximum number of bytes read of tables'
        control bytes, in total."""
        ...

    def keys(self, budget: int) -> tuple[array[int], bool]:
        """Return the keys ("Q", unsorted, repeated) of the next `budget` references, and whether
        none is left."""
        ...

    def count(self, keys: array[int]) -> None:
        """Count the blocks of these keys, which ascend and are distinct."""
        ...

    def rows(self, least: int) -> list[Row]:
        """Return rows with at least `least` blocks; by size, then offset."""
        ...

    def held(self, sizes: Sequence[int], counts: array[int], first: int, budget: int) -> int:
        """Count reachable and possible blocks by size; return the next index.

        Examines `budget` blocks from index `first` on. Adds to `counts` ("Q"), which has an element
        for each of `sizes`, which ascend, and one for all blocks."""
        ...

    def accept(self, rules: Sequence[Rule], budget: int) -> bool:
        """Apply ascending rules to the next `budget` references. Return True when none is left."""
        ...

    def promote(self, budget: int) -> bool:
        """Visit about `budget` possible blocks that became reachable. Return True when all are
        marked."""
        ...

    def effect(self, keys: array[int], rules: Sequence[Rule]) -> list[Totals]:
        """Return for each rule the blocks, among those of the keys, that `promote` made reachable.

        Each block counts once, under its first key with a rule. A rule for any size precedes one
        for its own size."""
        ...
