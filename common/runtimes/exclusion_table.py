"""Number the distinct exclusions of a heap's objects, as the patterns of Graph.exclude_words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional

from findleaks.engine.terms import Exclusion

MOST_EXCLUSIONS = 255


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
