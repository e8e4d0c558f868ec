"""The roots that reach the memory that several roots retain together, in pure Python.

The C engine finds strongly connected components. This module propagates the sets of roots along the
references until nothing changes, which is simpler and slower."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Optional

from findleaks.engine.dominators import SET, SHARED, RootSet, node_root, root_node, sort_sets
from findleaks.engine.reference.work import run

if TYPE_CHECKING:
    from findleaks.engine.reference.dominators import PureDominators
    from findleaks.engine.reference.graph import PureGraph


class PureRootSets:
    """See dominators.RootSets."""

    def __init__(self, graph: PureGraph, tree: PureDominators, eligible: tuple[int, int], references: Iterable[tuple[int, int]]) -> None:
        self._graph, self._tree, self._eligible, self._references = graph, tree, eligible, list(references)
        self._sets: dict[int, frozenset[int]] = {}  # by block that SHARED retains directly
        self._work = self._compute()

    def compute(self, budget: int) -> bool:
        return run(self._work, budget)

    def sets(self) -> list[RootSet]:
        sizes: Counter[frozenset[int]] = Counter()
        for block, roots in self._sets.items():
            sizes[roots] += self._tree.sum_retained(block).bytes
        first = self._eligible[0]
        fitting = ((sorted(roots), size) for roots, size in sizes.items() if 0 < len(roots) <= SET and size)
        return sort_sets(RootSet(tuple(roots), size) for roots, size in fitting if roots[0] >= first)

    def _set_of_root(self, root: int) -> frozenset[int]:
        return frozenset([root] if root < self._eligible[1] else [])

    def _compute(self) -> Iterator[None]:
        tree, edges = self._tree, set[tuple[int, int]]()  # from the top above a block, to a top
        for index in range(len(self._graph.blocks)):
            top = self._top(index)
            if top is None:
                continue
            if top == index:
                self._sets[index] = frozenset()
            for edge in self._graph.edges_of(index):
                if not tree.edge_ignored(edge >> 1, index):
                    edges.add((top, edge >> 1))
            yield
        edges |= {(root_node(root), block) for root, block in self._references if not tree.edge_ignored(block, root_node(root))}
        waiting = [(top, block) for top, block in edges if block in self._sets and top != block]
        changed = True
        while changed:
            changed = False
            for top, block in waiting:
                roots = self._sets[top] if top >= 0 else self._set_of_root(node_root(top))
                if not roots <= self._sets[block]:
                    self._sets[block] |= roots
                    changed = True
                yield

    def _top(self, block: int) -> Optional[int]:
        """Return the root that retains a block; if there is none, the outermost block that retains
        it. Return None if no root reaches the block."""
        above = self._tree.idom(block)
        while above is not None and above >= 0:
            block, above = above, self._tree.idom(above)
        return block if above == SHARED else above
