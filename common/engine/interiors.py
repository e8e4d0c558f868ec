"""The contract for interior references to possible blocks: at which offsets of blocks of which sizes they aim, and making start
references of those that a rule names. Both engines give the same answers: `kernel/interiors.py` and `python/interiors.py`.

A *key* is block index << 32 | offset in bytes, for a reference from a reachable or possible block, or a root, into a possible block.
A *rule* is a pair (size, offset): pointers to this offset of blocks of this usable size count as pointers to their start; size 0 stands
for any size.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from findleaks.engine.terms import Totals

MOST_OFFSET = (1 << 32) - 1
"""Offsets from here on are not told apart, and no rule names them."""

Rule = tuple[int, int]


class Row(NamedTuple):
    """So many blocks of `size` have a pointer to `offset`; offset 0: of so many it was looked at. Size 0: of all sizes together."""

    size: int
    offset: int
    blocks: int


class Interiors(Protocol):
    """What a graph noted that was made with Heuristic.AUTO. Order: `keys` until it is done, `count` over all of them, each once and
    ascending, `accept` and `promote` until each is done, `effect`."""

    def keys(self, budget: int) -> tuple[array[int], bool]:
        """Keys ("Q", unsorted, with repetitions) of the next `budget` references that were noted, and whether these were the last."""
        ...

    def count(self, keys: array[int]) -> None:
        """Count the blocks of these keys, which ascend and differ."""
        ...

    def rows(self, least: int) -> list[Row]:
        """What was counted, where it is at least `least` blocks; by size, then offset."""
        ...

    def held(self, sizes: Sequence[int], counts: array[int], first: int, budget: int) -> int:
        """Add to `counts` ("Q", one for each of `sizes`, which ascend, and one for all) how many blocks are reachable or possible, of
        `budget` blocks from index `first` on; where to go on."""
        ...

    def accept(self, rules: Sequence[Rule], budget: int) -> bool:
        """Apply the rules, which ascend, to the next `budget` references that were noted; True when these were the last."""
        ...

    def promote(self, budget: int) -> bool:
        """Visit about `budget` possible blocks that are reachable by now; True when all are marked so."""
        ...

    def effect(self, keys: array[int], rules: Sequence[Rule]) -> list[Totals]:
        """By rule, those of the keys' blocks that it leads to and that `promote` made reachable. Each counts for one rule: the first of its
        keys that one covers, a rule for any size before that for its own."""
        ...
