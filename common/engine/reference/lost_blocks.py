"""Queries about the leaked blocks of a classified graph, in pure Python."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Sequence
from typing import Optional

from findleaks.engine.columns import Numbers
from findleaks.engine.reference.lost import Lost
from findleaks.engine.terms import NO_BLOCK, Group, Kind, Totals
from findleaks.target.base import Piece, Range


class LostBlocks(ABC):
    """Part of contract.Graph, a base class of PureGraph."""

    lost: Lost

    @abstractmethod
    def index(self, index: int) -> int:
        """Return the index. IndexError if there is no such block."""

    @abstractmethod
    def _after_classifying(self) -> None:
        """Raise RuntimeError if the graph is not classified."""

    @abstractmethod
    def edges_of(self, index: int) -> array[int]:
        """Return the edges of a block; see PureGraph."""

    def leaked_references(self) -> array[int]:
        leak_heads = self.leak_heads()
        counts = array("I", bytes(4 * len(leak_heads)))
        for index, leak_head in enumerate(leak_heads):
            for edge in self.edges_of(index) if leak_head != NO_BLOCK else ():
                if leak_heads[edge >> 1] != NO_BLOCK:
                    counts[edge >> 1] += 1
        return counts

    def leak_heads(self) -> memoryview:
        self._after_classifying()
        return memoryview(self.lost.leak_heads()).toreadonly()

    def label_totals(self, kinds: Iterable[Kind]) -> list[Totals]:
        self._after_classifying()
        return self.lost.label_totals(frozenset(kinds))

    def has_cycles(self) -> bool:
        self._after_classifying()
        return bool(self.lost.members)

    def cycle_ranges(self) -> list[Range]:
        self._after_classifying()
        return self.lost.cycle_ranges()

    def represent_cycles(self, pieces: Iterable[Piece], types: Sequence[Range]) -> None:
        self._after_classifying()
        self.lost.represent_cycles(pieces, types)

    def representative(self, index: int) -> int:
        self._after_classifying()
        return self.lost.representative(self.index(index))

    def groups(self, pieces: Iterable[Piece], types: Sequence[Range], marks: Optional[Numbers] = None) -> list[Group]:
        self._after_classifying()
        return self.lost.groups(pieces, types, marks)

    def group_typed(self, pieces: Iterable[Piece], types: Sequence[Range]) -> list[Group]:
        self._after_classifying()
        return self.lost.group_typed(pieces, types)

    def leak_head(self, index: int) -> int:
        self._after_classifying()
        return self.lost.leak_head(self.index(index))

    def cycle(self, index: int) -> int:
        self._after_classifying()
        return self.lost.cycle(self.index(index))

    def indirect_totals(self, index: int) -> Totals:
        self._after_classifying()
        return self.lost.indirect_totals(self.index(index))

    def heads(self) -> Optional[array[int]]:
        self._after_classifying()
        return self.lost.heads()
