"""Draw samples of blocks, and of pointers to them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from findleaks.engine.numbered_words import hash_word
from findleaks.engine.type_spread import MOST_POINTERS, Pointers

SAMPLE = 96  # Maximum number of blocks that are compared with all candidates.
GOLDEN = 0.6180339887498949

Rows = dict[int, tuple[int, int, int]]
"""Pointers (owner, place, block) by block. One pointer to each block is kept."""


def sample_blocks(blocks: Sequence[int]) -> Sequence[int]:
    """Return at most SAMPLE of the blocks. The steps follow the golden ratio, because equal steps
    could miss one of two types that alternate."""
    count = len(blocks)
    return blocks if count <= SAMPLE else [blocks[at] for at in sorted({int(step * GOLDEN % 1 * count) for step in range(SAMPLE)})]


def group_by_block(rows: Sequence[int]) -> Rows:
    """Return the last pointer to each block. `rows`: owner, place and block of each pointer."""
    return {rows[at + 2]: (rows[at], rows[at + 1], rows[at + 2]) for at in range(0, len(rows), 3)}


def merge_pointers(earlier: Pointers, later: Pointers) -> Pointers:
    """Merge the pointers of one rule from two rounds. A pointer that occurs in both is counted
    once."""
    untyped, typed = _merge_rows(earlier.untyped, later.untyped), _merge_rows(earlier.typed, later.typed)
    return later._replace(total=max(earlier.total, later.total, len(untyped) // 3), untyped=untyped, typed=typed)


def _merge_rows(earlier: array[int], later: array[int]) -> array[int]:
    """Return owner, place and block of both lists of pointers, with at most MOST_POINTERS of them.
    If there are more, the choice depends on hashes of their places."""
    rows = {some[at + 1]: some[at : at + 3] for some in (earlier, later) for at in range(0, len(some), 3)}
    places = sorted(rows, key=hash_word)[:MOST_POINTERS] if len(rows) > MOST_POINTERS else rows
    return array("Q", [word for place in places for word in rows[place]])
