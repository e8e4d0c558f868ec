"""The blocks that a snapshot keeps: a sample of those in use, all of them if they are few.

findleaks/engine/sampling.py says which blocks are in a sample.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from findleaks.engine.sampling import COLUMNS, MAX_LEVEL, NO_SAMPLE
from findleaks.session import Session

MOST = 1 << 14
"""Blocks of a sample, at most: a heap with no more than these is there as a whole."""

Block = tuple[int, int]
"""Address, and usable size in bytes."""


class Sample(NamedTuple):
    """`level`: its own; `rows`: how many blocks it has. `blocks` gives those that are in a sample
    of that level (its own or above); TargetError where their file cannot be read any more."""

    level: int
    rows: int
    blocks: Callable[[int], set[Block]]

    def number(self, level: int) -> int:
        """About how many there are in a sample of this level."""
        return self.rows >> max(level - self.level, 0)


def in_memory(level: int, rows: array[int]) -> Sample:
    """A sample of these rows of address, size and level, which are not copied."""

    def blocks(least: int) -> set[Block]:
        return {(address, size) for address, size, own in triples(rows) if own >= least}

    return Sample(level, len(rows) // COLUMNS, blocks)


def triples(rows: array[int]) -> Iterator[tuple[int, int, int]]:
    return zip(rows[::COLUMNS], rows[1::COLUMNS], rows[2::COLUMNS])


def taken(session: Session, most: int = MOST) -> Sample:
    """A sample of the blocks in use in a session, with checks for Ctrl-C."""
    blocks, found = session.directory.blocks, NO_SAMPLE
    for first in range(0, len(blocks), session.budget):
        session.report_progress("sampling the blocks", first / len(blocks))
        found = blocks.sample(most, first, first + session.budget, found)
    return in_memory(*found)


def common_level(samples: Sequence[Sample], most: int) -> int:
    """The lowest level at which samples can be compared, and have about `most` blocks together."""
    level = max(one.level for one in samples)
    while sum(one.number(level) for one in samples) > most and level < MAX_LEVEL:
        level += 1
    return level
