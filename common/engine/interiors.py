"""Interior references to possible blocks: at which offsets of blocks of which sizes they point, and
changing those that a rule names to start references. Both engines give the same answers.

A *key* is block index << 32 | offset in bytes, for a reference from a reachable or possible block,
or a root, into a possible block. A *rule* is a pair (size, offset): pointers to this offset of
blocks of this usable size count as pointers to their start; size 0 means any size."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from findleaks.engine.terms import Totals

MAX_OFFSET = (1 << 32) - 1
"""Offsets from here on count as this one, and no rule names them."""

Rule = tuple[int, int]


class Row(NamedTuple):
    """`blocks` of `size` have a pointer to `offset`; offset 0: `blocks` were examined. Size 0: all
    sizes together."""

    size: int
    offset: int
    blocks: int


class Interiors(Protocol):
    """The interior references recorded by a graph made with Heuristic.AUTO. Order: `keys` until
    done, `count` over all of them, sorted and each once, `accept` and `promote` until each is done,
    `effect`."""

    def keys(self, budget: int) -> tuple[array[int], bool]:
        """Keys ("Q", unsorted, with repetitions) of the next `budget` recorded references, and
        whether these were the last."""
        ...

    def count(self, keys: array[int]) -> None:
        """Count the blocks of these keys, which ascend and differ."""
        ...

    def rows(self, least: int) -> list[Row]:
        """The rows with at least `least` blocks; by size, then offset."""
        ...

    def held(self, sizes: Sequence[int], counts: array[int], first: int, budget: int) -> int:
        """Add to `counts` ("Q", one for each of `sizes`, which ascend, and one for all) the
        reachable and possible blocks among `budget` blocks from index `first`; returns the next
        index."""
        ...

    def accept(self, rules: Sequence[Rule], budget: int) -> bool:
        """Apply the rules, which ascend, to the next `budget` recorded references; True when these
        were the last."""
        ...

    def promote(self, budget: int) -> bool:
        """Visit about `budget` possible blocks that became reachable; True when all are marked."""
        ...

    def effect(self, keys: array[int], rules: Sequence[Rule]) -> list[Totals]:
        """By rule, the keys' blocks that `promote` made reachable. Each counts for one rule: that
        of the first of its keys with one, a rule for any size before one for its own."""
        ...
