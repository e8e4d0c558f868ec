"""A consistent sample of the blocks in use, the same as that of the C engine (sample.c)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from findleaks.engine.sampling import COLUMNS, Sample, level_of, thin_out
from findleaks.engine.terms import State

if TYPE_CHECKING:
    from findleaks.engine.reference.blocks import PureBlocks


def sample(blocks: PureBlocks, most: int, first: int, last: int, before: Sample) -> Sample:
    """See contract.Blocks.sample."""
    level, rows = thin_out(before[1], before[0], most)
    for start, size, state in zip(blocks.starts[first:last], blocks.sizes[first:last], blocks.states[first:last]):
        if state == State.IN_USE and (own := level_of(start, size)) >= level:
            rows.extend((start, size, own))
            if len(rows) > most * COLUMNS:
                level, rows = thin_out(rows, level, most)
    return level, rows
