"""Draw samples of blocks."""

from __future__ import annotations

from collections.abc import Sequence

SAMPLE = 96  # Maximum number of blocks that are compared with all candidates.
GOLDEN = 0.6180339887498949


def sample_blocks(blocks: Sequence[int]) -> Sequence[int]:
    """Return at most SAMPLE of the blocks. The steps follow the golden ratio, because equal steps
    could miss one of two types that alternate."""
    count = len(blocks)
    return blocks if count <= SAMPLE else [blocks[at] for at in sorted({int(step * GOLDEN % 1 * count) for step in range(SAMPLE)})]
