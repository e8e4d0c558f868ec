"""A sample of the blocks in use, which a snapshot stores. If there are few blocks, all of them are
stored.

findleaks/engine/sampling.py defines which blocks are in a sample."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from findleaks.engine.sampling import COLUMNS, MAX_LEVEL, NO_SAMPLE
from findleaks.session import Session

MOST = 1 << 14
"""Maximum number of blocks in a sample. A heap with at most this many blocks is stored
completely."""

Block = tuple[int, int]
"""The address, and the usable size in bytes."""


class BlockSample(NamedTuple):
    """A sample of blocks in use.

    `level`: the level of the sample (engine/sampling.py). `rows`: its number of blocks. `blocks`: a
    function that returns the blocks of the sample with a given level or a higher one. It raises
    TargetError if the file can no longer be read."""

    level: int
    rows: int
    blocks: Callable[[int], set[Block]]

    def number(self, level: int) -> int:
        """Return the approximate number of blocks in a sample of this level."""
        return self.rows >> max(level - self.level, 0)


def in_memory(level: int, rows: array[int]) -> BlockSample:
    """Return a sample that consists of these rows of address, size and level. The rows are not
    copied."""

    def blocks(least: int) -> set[Block]:
        return {(address, size) for address, size, own in triples(rows) if own >= least}

    return BlockSample(level, len(rows) // COLUMNS, blocks)


def triples(rows: array[int]) -> Iterator[tuple[int, int, int]]:
    return zip(rows[::COLUMNS], rows[1::COLUMNS], rows[2::COLUMNS])


def take_sample(session: Session, most: int = MOST) -> BlockSample:
    """Take a sample of a session's blocks in use, with checks for Ctrl-C."""
    blocks, found = session.directory.blocks, NO_SAMPLE
    for first in range(0, len(blocks), session.budget):
        session.report_progress("sampling the blocks", first / len(blocks))
        found = blocks.sample(most, first, first + session.budget, found)
    return in_memory(*found)


def common_level(samples: Sequence[BlockSample], most: int) -> int:
    """Return the lowest level at which the samples can be compared, and together have at most about
    `most` blocks."""
    level = max(one.level for one in samples)
    while sum(one.number(level) for one in samples) > most and level < MAX_LEVEL:
        level += 1
    return level
