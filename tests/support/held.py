"""Dominators by definition: remove one node at a time, and see which nodes are no longer reachable. For graphs of a few dozen blocks."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import graphs

from findleaks.engine.contract import Engine, Graph
from findleaks.engine.dominators import SHARED, Dominators, root_node
from findleaks.engine.terms import State, Totals


class Oracle:
    """The expected results for blocks with these sizes and references, and for what each root refers to."""

    def __init__(self, sizes: Sequence[int], references: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> None:
        self.sizes, self.references, self.targets = sizes, references, targets
        self.reached = self.reach(None)
        nodes = [*sorted(self.reached), *(root_node(root) for root in range(len(targets)))]
        self.held = {node: self.reached - self.reach(node) for node in nodes}

    def reach(self, without: int | None) -> set[int]:
        """Return the nodes that are reachable from the roots without this node."""
        work = [t for root, mine in enumerate(self.targets) if root_node(root) != without for t in mine]
        found: set[int] = set()
        while work:
            index = work.pop()
            if index != without and index not in found:
                found.add(index)
                work += self.references[index]
        return found

    def idom(self, index: int) -> int | None:
        """Return the immediate dominator: of all nodes that dominate this block, the one that the others dominate, too."""
        if index not in self.reached:
            return None
        above = [node for node, mine in self.held.items() if index in mine and node != index]
        return min(above, key=lambda node: len(self.held[node]) + (node < 0) * 0.5) if above else SHARED

    def totals(self, indices: set[int]) -> Totals:
        return Totals(len(indices), sum(self.sizes[i] for i in indices))

    def retained(self, node: int) -> Totals:
        if node == SHARED:
            return self.totals(self.reached - set().union(*(self.held[root_node(r)] for r in range(len(self.targets)))))
        return self.totals(self.held.get(node, set()))


def compute_dominators(dominators: Dominators, budget: int = 1 << 20) -> Dominators:
    while not dominators.compute(budget):
        assert 0 <= dominators.progress() <= 1
    return dominators


def engines() -> list[Engine]:
    return [graphs.native(), graphs.pure()]


def everything(dominators: Dominators, count: int) -> dict[str, Any]:
    """Return all results for all blocks and roots."""
    nodes = [*range(count), *(root_node(root) for root in range(dominators.roots)), SHARED]
    return {
        "total": dominators.total(),
        "shared": dominators.sum_shared(),
        "roots": dominators.by_root(),
        "retained": [dominators.sum_retained(node) for node in nodes],
        "holders": [dominators.idom(index) for index in range(count)],
        "children": [dominators.children(node, 1 << 30) for node in nodes],
        "heaviest": [dominators.children(node, 2) for node in nodes],
        "spread": [dominators.spread(node, 1 << 30) for node in nodes],
        "sizes": [dominators.sizes(node, 3) for node in nodes],
        "members": [dominators.members(node, 0, 1 << 30) for node in nodes],
        "some": [dominators.members(node, 1, 2) for node in nodes],
        "chains": [dominators.chain(index, equal, limit) for index in range(count) for equal in (False, True) for limit in (3, 1 << 20)],
    }


def agrees(dominators: Dominators, oracle: Oracle) -> None:
    """Check that every result is that of the oracle."""
    count, roots = len(oracle.sizes), range(len(oracle.targets))
    nodes = [*range(count), *map(root_node, roots)]
    assert dominators.total() == oracle.totals(oracle.reached)
    assert dominators.sum_shared() == oracle.retained(SHARED) == dominators.sum_retained(SHARED)
    assert dominators.by_root() == [oracle.retained(root_node(root)) for root in roots]
    assert [dominators.sum_retained(node) for node in nodes] == [oracle.retained(node) for node in nodes]
    holders = [oracle.idom(index) for index in range(count)]
    assert [dominators.idom(index) for index in range(count)] == holders
    for node in [*nodes, SHARED]:
        below = [i for i in range(count) if holders[i] == node]
        children = dominators.children(node, 1 << 30)
        assert [(c.block, Totals(c.blocks, c.bytes)) for c in children] == [
            (i, oracle.retained(i)) for i in sorted(below, key=lambda i: (-oracle.retained(i).bytes, i))
        ]
        assert dominators.children(node, 1) == children[:1]
        spread = dominators.spread(node, 1 << 30)
        assert [s.size for s in spread] == sorted(
            {oracle.sizes[i] for i in below}, key=lambda size: next((-s.bytes, size) for s in spread if s.size == size)
        )
        for size, number, blocks, total, example in spread:
            mine = [i for i in below if oracle.sizes[i] == size]
            retained = [oracle.retained(i) for i in mine]
            assert (number, blocks, total, example) == (
                len(mine),
                sum(r.blocks for r in retained),
                sum(r.bytes for r in retained),
                min(mine),
            )
        held = oracle.held.get(node, set()) if node != SHARED else set().union(*(oracle.held[i] for i in below))
        members = list(dominators.members(node, 0, 1 << 30))
        assert sorted(members) == sorted(held)
        for at, index in enumerate(members):
            assert holders[index] == node or holders[index] in members[:at] or index == node
        assert sorted(dominators.sizes(node, 1 << 30)) == sorted(
            (s, sum(oracle.sizes[i] == s for i in held)) for s in {oracle.sizes[i] for i in held}
        )


BASE = 0x7F0000000000


def make_graph(
    engine: Engine, references: Sequence[Sequence[int]], spare: Sequence[int] = (), gap: int = 0, interior: bool = False
) -> Graph:
    """Make the graph of a heap with a block for each list of references, which are the block's words. `spare`: unused bytes at the end of
    each block (0: none). Blocks are adjacent, in one heap or, `gap` bytes apart, in two. `interior`: every third reference points to a
    block's last byte."""
    starts, sizes, at = [], [], BASE
    for index, mine in enumerate(references):
        at += gap if index == len(references) // 2 else 0
        starts.append(at)
        sizes.append(max(8 * len(mine) + (spare[index] if spare else 0), 8))
        at += -(-sizes[-1] // 16) * 16
    blocks = [graphs.Block(start, size, State.IN_USE) for start, size in zip(starts, sizes)]
    memory = bytearray(at - BASE)
    for index, mine in enumerate(references):
        inside = [sizes[t] - 1 if interior and number % 3 == 2 else 0 for number, t in enumerate(mine)]
        words = [starts[t] + offset for t, offset in zip(mine, inside)]
        struct.pack_into(f"<{len(words)}Q", memory, starts[index] - BASE, *words)
    heap = graphs.Heap(16, blocks, [(BASE, bytes(memory))], [], [])
    heap.root_words = starts  # all blocks are in use and reachable
    half = starts[len(starts) // 2] - BASE if starts else 0
    heap.pieces = [graphs.piece(BASE, bytes(memory[:half])), graphs.piece(BASE + half, bytes(memory[half:]))]
    return graphs.graph_of(engine, heap)


def tree_of(graph: Graph, targets: Sequence[Sequence[int]], budget: int = 1 << 20) -> Dominators:
    """Return the computed dominator tree, with roots that refer to these blocks."""
    dominators = graph.dominators(len(targets))
    for root, mine in enumerate(targets):
        dominators.refer(root, mine)
    return compute_dominators(dominators, budget)


def select_by_priority(
    references: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], priorities: Sequence[int]
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the references of blocks and of roots that count. A block that roots of an earlier priority reach belongs to them: references
    to it from blocks that only later priorities reach do not count."""
    whose: dict[int, int] = {}
    for priority, (first, end) in enumerate(zip((0, *priorities), (*priorities, len(targets)))):
        work = [t for root in range(first, end) for t in targets[root]]
        while work:
            index = work.pop()
            if index not in whose:
                whose[index] = priority
                work += references[index]
    left = [[t for t in mine if whose.get(t) == whose.get(index)] for index, mine in enumerate(references)]
    kept = [[t for t in mine if whose[t] == sum(root >= first for first in priorities)] for root, mine in enumerate(targets)]
    return left, kept
