"""Interior references to possible blocks, counted by offset and block size. Those that a rule
matches become start references.

A *key* is block index << 32 | offset in bytes, for each reference into a POSSIBLE block that comes
from a root, or from a REACHABLE or POSSIBLE block. A *rule* is a pair (size, offset): pointers to
this offset of blocks of this usable size (0: any) count as pointers to their start."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Optional, Protocol

from findleaks.engine.interior_structures import Examination
from findleaks.engine.terms import Totals
from findleaks.target.base import Piece, Range
from findleaks.value_classes import NamedTuple

MAX_OFFSET = (1 << 32) - 1  # stands for all larger offsets; rules do not use it
LOW_BITS = MAX_OFFSET  # in a Row: any offset below two words; pointer tags produce these
Rule = tuple[int, int]


class Row(NamedTuple):
    """The number of blocks of a size to which pointers with a certain offset exist.

    `blocks` blocks of `size` (0: all sizes) are referred to at `offset`. If `offset` is 0, `blocks`
    is the number of blocks examined. If it is LOW_BITS, `blocks` is the number of blocks with a
    pointer to any offset below two words."""

    size: int
    offset: int
    blocks: int


class Interiors(Protocol):
    """The interior references of a graph with Heuristic.AUTO.

    To recognise structures, call `examine`, all steps of the result, and `promote` until it is
    done. Then call `keys` until it is done; `count` with all keys, sorted and without repetition;
    `accept` and then `promote`, each until it is done; and `effect`. Last, call `examine` for
    links, which a convention may also explain, and `promote`."""

    def places(self, most: int) -> Optional[array[int]]:
        """Return three numbers for each reference to a possible block, or None if there are more
        than `most`.

        The numbers are: the block that contains the reference (NO_BLOCK: it is in root memory); the
        address of the reference if it is in root memory, otherwise 0; and the block referred to."""
        ...

    def examine(self, pieces: Sequence[Piece], code: Sequence[Range], credit: int, php: bool, links: bool = False) -> Examination:
        """Return a search for known structures (interior_structures.py).

        `pieces` is memory, ascending. It contains at least all blocks and root words that `places`
        returned. `code` has sorted ranges of executable memory. `credit` is the maximum total
        number of control bytes of hash tables that are read. `links`: whether to search only for
        links of lists and trees, or for all other structures."""
        ...

    def keys(self, budget: int) -> tuple[array[int], bool]:
        """Return the keys ("Q", unsorted, with repetitions) of the next `budget` references, and
        whether these were the last."""
        ...

    def count(self, keys: array[int]) -> None:
        """Count the blocks of these keys, which ascend without repetition."""
        ...

    def rows(self, least: int) -> list[Row]:
        """Return the rows with at least `least` blocks, sorted by size, then by offset."""
        ...

    def count_held(self, sizes: Sequence[int], counts: array[int], first: int, budget: int) -> int:
        """Count REACHABLE and POSSIBLE blocks by size. Return the index at which to continue.

        Examines `budget` blocks from index `first` on. Adds to `counts` ("Q"), which has an element
        for each of the ascending `sizes`, and one more for blocks of all sizes."""
        ...

    def accept(self, rules: Sequence[Rule], budget: int) -> bool:
        """Apply rules, which ascend, to the next `budget` references. Return True when all
        references are done."""
        ...

    def promote(self, budget: int) -> bool:
        """Visit about `budget` possible blocks that became reachable. Return True when all are
        marked."""
        ...

    def effect(self, keys: array[int], rules: Sequence[Rule]) -> list[Totals]:
        """Return, for each rule, how many of the blocks of the keys `promote` made reachable.

        Each block counts once, under its first key with a rule. A rule for all sizes precedes a
        rule for the size of the block."""
        ...
