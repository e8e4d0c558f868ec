"""Draw samples of blocks, and of pointers to them."""

from __future__ import annotations

from collections.abc import Sequence

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
