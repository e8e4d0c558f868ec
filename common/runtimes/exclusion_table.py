"""Number the distinct exclusions of a heap's objects, as the patterns of Graph.exclude_words."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Optional

from findleaks.engine.contract import Blocks
from findleaks.engine.terms import EVERY_WORD, Exclusion
from findleaks.runtimes.base import Exclusions
from findleaks.target.base import Target
from findleaks.target.interruptible import interruptible

MOST_EXCLUSIONS = 255
_LOOK = 4096  # blocks between two checks for the user's interrupt


def exclude_whole_blocks(target: Target, blocks: Blocks, addresses: array[int]) -> Exclusions:
    """Exclude all words of the blocks that contain these addresses (type code "Q"). Addresses
    outside of blocks are ignored. Raises Interrupted."""
    patterns = bytearray(len(blocks))
    indices, _ = blocks.find_all(addresses)
    for index in interruptible(target, indices, _LOOK):
        if index < len(patterns):
            patterns[index] = 1
    return Exclusions(patterns, (Exclusion(0), Exclusion(EVERY_WORD)))


class ExclusionTable:
    """Exclusions without repetition; the number of a pattern is its index in `exclusions`.

    `first`: exclusions with the lowest numbers. `most`: maximum number of exclusions."""

    def __init__(self, first: Iterable[Exclusion], most: int = MOST_EXCLUSIONS) -> None:
        self.exclusions = list(first)
        self._most = most
        self._numbers = {exclusion: number for number, exclusion in enumerate(self.exclusions)}

    def add(self, exclusion: Exclusion) -> Optional[int]:
        """Return the number of an exclusion, which is added if it is new; None if it is new and the
        table is full."""
        number = self._numbers.get(exclusion)
        if number is None and len(self.exclusions) < self._most:
            number = self._numbers[exclusion] = len(self.exclusions)
            self.exclusions.append(exclusion)
        return number
