"""What an owner retains by field, in pure Python."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from findleaks.engine.fields import FieldsTree
from findleaks.engine.reference.work import run
from findleaks.engine.retained import Rows

if TYPE_CHECKING:
    from findleaks.engine.reference.dominators import PureDominators
    from findleaks.engine.reference.graph import PureGraph


class PureFields(FieldsTree):
    """See dominators.Dominators."""

    def __init__(self, graph: PureGraph, tree: PureDominators, node: int, fields: int) -> None:
        super().__init__(tree, graph.blocks, node, fields)
        self._graph, self._whole, self._node = graph, tree, node
        self._found = array("I", bytes(4 * self._span))
        self._queue: list[int] = []
        self._work: Iterator[None] | None = None
        self._steps = 0

    def root_words(self, words: Sequence[int], root: int) -> None:
        super().root_words(words, root)
        for value in words:
            edge = self._graph.resolve(value)
            if edge >= 0:
                self._reach(edge >> 1, root + 1, self._node)

    def refer(self, root: int, blocks: Sequence[int]) -> None:
        super().refer(root, blocks)
        for index in blocks:
            self._reach(index, root + 1, self._node)

    def compute(self, budget: int) -> bool:
        self._begun = True
        if self._work is None:
            self._work = self._compute()
        if not self._done:
            self._steps += max(1, budget)
            self._done = run(self._work, budget)
        return self._done

    def progress(self) -> float:
        return 1.0 if self._done else min(0.99, self._steps / (2 * self._span + 1))

    def _reach(self, index: int, label: int, source: int) -> None:
        """Mark the block as referenced by `source`. `label`: 1 + the number of the field that the
        reference belongs to, or the label for several fields."""
        place = self._whole.place(index)
        if place is None or not self._first < place < self._first + self._span:
            return
        if self._whole.parent_at(place) != self._first or self._whole.edge_ignored(index, source):
            return
        before = self._found[place - self._first]
        now = self.roots + 1 if before and before != label else label
        if now != before:
            self._found[place - self._first] = now
            self._queue.append(place)

    def _compute(self) -> Iterator[None]:
        while self._queue:
            head = self._queue.pop()
            label = self._found[head - self._first]
            for source in self._whole.blocks_at(head, head + self._whole.count_at(head)):
                for edge in self._graph.edges_of(source):
                    self._reach(edge >> 1, label, source)
                yield
        listed: list[list[int]] = [[] for _ in range(self.roots + 2)]
        for place, label in enumerate(self._found, self._first):
            if label:
                listed[label].append(place)
        totals = [[self._whole.total_at(place) for place in mine] for mine in listed]
        self._labels = self._found
        self._all = sorted(place for mine in listed for place in mine)
        self._starts = list(accumulate(map(len, listed), initial=0))
        self._heads = [place for mine in listed for place in mine]
        self._ends = [end for mine in totals for end in accumulate(total.blocks for total in mine)]
        self._sums = [number for mine in totals[1:] for number in (sum(t.blocks for t in mine), sum(t.bytes for t in mine))]
        yield

    def _children(self, field: int, limit: int) -> Sequence[int]:
        mine = self._heads[self._starts[field + 1] : self._starts[field + 2]]
        return sorted(mine, key=lambda place: (-self._whole.total_at(place).bytes, self._whole.blocks_at(place, place + 1)[0]))[:limit]

    def _spread(self, field: int, everything: bool) -> Rows:
        return self._whole.rows_at(self._heads[self._starts[field + 1] : self._starts[field + 2]], everything)
