"""How the blocks in use are sampled, so that samples of several moments have the same blocks.

A block has a *level* that follows from its address and size alone: the leading zeros of the
address's hash, plus the bits of the number of whole LARGE units in its size. A sample of level L
has every block of level L and above. So a block below LARGE is in it with a probability of 1 / 2^L,
one of 2^n LARGE units with one 2^(n + 1) times as high, for the few large blocks may hold most of
the bytes. Samples of two moments are compared at the higher one of their levels, at which each has
either both or none of what is the same block. At level 0 all blocks are in it.

That samples are consistent because membership depends on the item's hash only: E. Cohen, "Size-
estimation framework with applications to transitive closure and reachability", JCSS 55, 1997; the
threshold that is halved as the sample fills: M. N. Wegman's adaptive sampling, in P. Flajolet, "On
adaptive sampling", Computing 34, 1990.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

COLUMNS = 3
"""Words of a row: address, usable size, level."""
LARGE_SHIFT = 12
LARGE = 1 << LARGE_SHIFT
"""Blocks of at least so many bytes are sampled the more, the larger they are."""
MAX_LEVEL = 64 + 64 - LARGE_SHIFT
Sample = tuple[int, "array[int]"]
"""Its level, and rows of address, size and level ("Q")."""
NO_SAMPLE: Sample = (0, array("Q"))
"""Of no blocks. Samples are not changed."""
_WORD = (1 << 64) - 1


def mixed(word: int) -> int:
    """The hash of a 64-bit word: splitmix64's mixer, a bijection (Steele, Lea, Flood, "Fast
    splittable pseudorandom number generators", OOPSLA 2014, figure 16; constants: Stafford's
    Mix13)."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD
    return word ^ word >> 31


def level_of(address: int, size: int) -> int:
    """0 to MAX_LEVEL."""
    return 64 - mixed(address).bit_length() + (size >> LARGE_SHIFT).bit_length()


def probability(size: int, level: int) -> float:
    """That a block of this size is in a sample of this level."""
    return 0.5 ** max(level - (size >> LARGE_SHIFT).bit_length(), 0)


def thinned(rows: array[int], level: int, most: int) -> tuple[int, array[int]]:
    """The rows (of a sample of `level` or below) of the lowest level, `level` or above, at which
    there are at most `most`: that level, and they."""
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
