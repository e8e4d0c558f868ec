"""Sample the blocks in use so that samples taken at different times contain the same blocks.

A block's *level* depends only on its address and size: the number of leading zeros in the hash of
the address, plus the bit length of (size // LARGE). A sample of level L has every block of level L
and above.

So a block below LARGE is in the sample with a probability of 1 / 2^L. For a block of 2^n LARGE
units the probability is 2^(n + 1) times as high, because a few large blocks may make up most of the
bytes. Two samples are compared at the higher of their levels. At this level, a block that existed
both times is in both samples or in neither. At level 0 all blocks are in the sample.

Because membership depends only on the hash of an item, samples are consistent: E. Cohen, "Size-
estimation framework with applications to transitive closure and reachability", JCSS 55, 1997. The
threshold is halved as the sample fills, as in M. N. Wegman's adaptive sampling: P. Flajolet, "On
adaptive sampling", Computing 34, 1990."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

COLUMNS = 3
"""Words of a row: address, usable size, level."""
LARGE_SHIFT = 12
LARGE = 1 << LARGE_SHIFT
"""Blocks of at least this many bytes are sampled with a probability that grows with their size."""
MAX_LEVEL = 64 + 64 - LARGE_SHIFT
Sample = tuple[int, "array[int]"]
"""A sample: its level, and rows of address, size and level ("Q")."""
NO_SAMPLE: Sample = (0, array("Q"))
"""A sample of no blocks. Samples are never modified."""
_WORD = (1 << 64) - 1


def mix(word: int) -> int:
    """Return the hash of a 64-bit word: splitmix64's mixer, a bijection (Steele, Lea, Flood, "Fast
    splittable pseudorandom number generators", OOPSLA 2014, figure 16; constants: Stafford's
    Mix13)."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD
    return word ^ word >> 31


def level_of(address: int, size: int) -> int:
    """Return the level of a block, 0 to MAX_LEVEL."""
    return 64 - mix(address).bit_length() + (size >> LARGE_SHIFT).bit_length()


def probability(size: int, level: int) -> float:
    """Return the probability that a block of this size is in a sample of this level."""
    return 0.5 ** max(level - (size >> LARGE_SHIFT).bit_length(), 0)


def thin_out(rows: array[int], level: int, most: int) -> tuple[int, array[int]]:
    """Thin out the rows of a sample of `level` or below: return the new level and its rows.

    The new level is the lowest, `level` or above, at which there are at most `most` rows."""
    counts = [0] * (MAX_LEVEL + 2)
    for one in rows[2::COLUMNS]:
        counts[one] += 1
    left = sum(counts[level:])
    while left > most:
        left -= counts[level]
        level += 1
    return level, array("Q", _flat(rows[at : at + COLUMNS] for at in range(0, len(rows), COLUMNS) if rows[at + 2] >= level))


def _flat(rows: Iterable[Iterable[int]]) -> Iterable[int]:
    return (word for row in rows for word in row)
