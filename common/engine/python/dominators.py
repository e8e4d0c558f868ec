"""The dominator tree in Python: the reference that tests compare the kernel with.

Semi-NCA: a depth-first numbering; semidominators, from the last number down; then, from the first
number up, each node's idom: the nearest ancestor of its parent whose number is at most the node's
semidominator. This last search uses skip links (E. Myers, "An applicative random-access stack",
1983): semi-NCA's plain walk is quadratic on a long list whose end refers to many blocks that others
refer to, too."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Optional

from findleaks.engine.dominators import (
    IGNORED,
    NO_ROOT,
    SHARED,
    Chain,
    Child,
    Spread,
    check_bounds,
    check_containers,
    check_merged,
    node_root,
    root_node,
)
from findleaks.engine.python.fields import PureFields
from findleaks.engine.python.words import words_of
from findleaks.engine.terms import Kind, Totals
from findleaks.target.base import Piece

if TYPE_CHECKING:
    from findleaks.engine.python.graph import PureGraph

_LOST = (Kind.POSSIBLE, Kind.DEFINITE, Kind.INDIRECT)


class PureDominators:
    """See dominators.Dominators."""

    def __init__(
        self,
        graph: PureGraph,
        roots: int,
        bounds: Sequence[int] = (),
        owners: Sequence[int] = (),
        lost: bool = False,
        priorities: Sequence[int] = (),
    ) -> None:
        check_bounds(roots, bounds, owners, priorities)
        self.roots = roots
        self._graph = graph
        self._bounds, self._owners = bounds, owners
        self._lost = lost
        self._merged: array[int] = array("I")
        self._containers: Optional[tuple[array[int], Sequence[int]]] = None
        self._priorities = [*priorities, roots]  # where each ends
        self._held: dict[int, tuple[int, int]] = {}  # block: priority, and its root or SHARED
        self._work: Iterator[None] | None = None
        self._steps = 0
        self._done = False
        # By place in preorder: node, its idom's place, nodes retained and their bytes
        self._nodes: list[int] = []
        self._parents: list[int] = []
        self._counts: list[int] = []
        self._bytes: list[int] = []
        self._places: dict[int, int] = {}

    def scan_roots(self, piece: Piece) -> None:
        """See dominators.Dominators."""
        self._before()
        arch, bounds = self._graph.blocks.arch, self._bounds
        base, words = words_of(piece, arch)
        for position in self._graph.candidates(piece, words):
            edge = self._graph.resolve(words[position])
            at = bisect_right(bounds, base + position * arch.word) - 1 if edge >= 0 else -1
            if at >= 0 and self._owners[at] != NO_ROOT:
                self._hold(edge >> 1, self._owners[at])

    def root_words(self, words: Sequence[int], root: int) -> None:
        """See dominators.Dominators."""
        self._before()
        self._root(root)
        for value in words:
            edge = self._graph.resolve(value)
            if edge >= 0:
                self._hold(edge >> 1, root)

    def refer(self, root: int, blocks: Sequence[int]) -> None:
        """See dominators.Dominators."""
        self._before()
        self._root(root)
        states = self._graph.blocks.states
        for index in blocks:
            if not 0 <= index < len(states):
                raise IndexError(f"no block {index}")
        for index in blocks:
            if not states[index]:
                self._hold(index, root)

    def refer_lost(self, definite: int, possible: int) -> None:
        """See dominators.Dominators."""
        self._before()
        self._root(definite)
        self._root(possible)
        if not self._lost:
            raise RuntimeError("dominators of what is lost only")
        graph = self._graph
        for index, kind in enumerate(graph.kinds()):
            if kind == Kind.DEFINITE:
                self._hold(index, definite)
            elif kind == Kind.POSSIBLE and graph.is_rooted(index):
                self._hold(index, possible)
            elif kind == Kind.REACHABLE:
                for target in {edge >> 1 for edge in graph.edges_of(index)}:
                    if graph.kind(target) == Kind.POSSIBLE:
                        self._hold(target, possible)

    def set_owners(self, containers: array[int], owners: Sequence[int]) -> None:
        """See dominators.Dominators."""
        self._before()
        sound = all(container < len(owners) or container == NO_ROOT for container in set(containers))
        check_containers(containers, owners, self.roots, len(self._graph.blocks), lambda: sound)
        self._containers = containers, owners

    def edge_ignored(self, index: int, source: int) -> bool:
        """Whether an edge is ignored: into a container's node, from neither its owner nor another
        of its nodes."""
        if self._containers is None:
            return False
        containers, owners = self._containers
        container = containers[index]
        return container != NO_ROOT and owners[container] != source and not (source >= 0 and containers[source] == container)

    def merge_into_roots(self, roots: array[int]) -> None:
        """See dominators.Dominators."""
        self._before()
        check_merged(roots, self.roots, len(self._graph.blocks))
        self._merged = roots

    def compute(self, budget: int) -> bool:
        """See dominators.Dominators."""
        if self._work is None:
            self._work = self._compute()
        for _ in range(0 if self._done else max(1, budget)):
            self._steps += 1
            if next(self._work, self._work) is self._work:
                self._done = True
                break
        return self._done

    def progress(self) -> float:
        """See dominators.Dominators."""
        return 1.0 if self._done else min(0.99, self._steps / (4 * len(self._graph.blocks) + 1))

    def total(self) -> Totals:
        """See dominators.Dominators."""
        self._after()
        return Totals(self._counts[0] - 1 - self.roots, self._bytes[0])

    def shared(self) -> Totals:
        """See dominators.Dominators."""
        return self.retained(SHARED)

    def by_root(self) -> list[Totals]:
        """See dominators.Dominators."""
        return [self.retained(root_node(root)) for root in range(self.roots)]

    def retained(self, node: int) -> Totals:
        """See dominators.Dominators."""
        place = self.place(node)
        if place is None:
            return Totals(0, 0)
        if node == SHARED:
            roots = self.by_root()
            blocks, size = self.total()
            return Totals(blocks - sum(r.blocks for r in roots), size - sum(r.bytes for r in roots))
        return Totals(self._counts[place] - (node < 0), self._bytes[place])

    def idom(self, index: int) -> Optional[int]:
        """See dominators.Dominators."""
        place = self.place(self._graph.index(index))
        return None if place is None else self._nodes[self._parents[place]]

    def children(self, node: int, limit: int) -> list[Child]:
        """See dominators.Dominators."""
        found = [Child(self._nodes[at], self._counts[at], self._bytes[at]) for at in self._below(self.place(node))]
        return sorted(found, key=lambda child: (-child.bytes, child.block))[: max(0, limit)]

    def spread(self, node: int, limit: int) -> list[Spread]:
        """See dominators.Dominators."""
        sizes = self._graph.blocks.sizes
        found: dict[int, Spread] = {}
        for at in self._below(self.place(node)):
            index = self._nodes[at]
            size = sizes[index]
            _, children, blocks, total, example = found.get(size, Spread(size, 0, 0, 0, index))
            found[size] = Spread(size, children + 1, blocks + self._counts[at], total + self._bytes[at], min(example, index))
        return sorted(found.values(), key=lambda spread: (-spread.bytes, spread.size))[: max(0, limit)]

    def sizes(self, node: int, limit: int) -> list[tuple[int, int]]:
        """See dominators.Dominators."""
        sizes = self._graph.blocks.sizes
        found = Counter(sizes[index] for index in self._retained(node))
        return sorted(found.items(), key=lambda item: (-item[0] * item[1], item[0]))[: max(0, limit)]

    def members(self, node: int, first: int, limit: int) -> array[int]:
        """See dominators.Dominators."""
        return array("I", self._retained(node)[max(0, first) :][: max(0, limit)])

    def chain(self, index: int, equal: bool, limit: int = 1 << 22) -> Chain:
        """See dominators.Dominators."""
        sizes, nodes, held = self._graph.blocks.sizes, self._nodes, self._bytes
        place = self.place(self._graph.index(index))
        size = sizes[index]
        length, least, most, total = 1, size, size, size
        while place is not None:
            below = [at for at in self._below(place) if not equal or sizes[nodes[at]] == size]
            heaviest = min(below, key=lambda at: (-held[at], nodes[at])) if below else None
            if heaviest is None or (not (equal and len(below) == 1) and held[heaviest] * 10 < held[place] * 9):
                break
            if length >= limit:
                return Chain(length, least, most, total, index, True)
            place, index = heaviest, nodes[heaviest]
            length, total = length + 1, total + sizes[index]
            least, most = min(least, sizes[index]), max(most, sizes[index])
        return Chain(length, least, most, total, index, False)

    def within(self, node: int, fields: int) -> PureFields:
        """See dominators.Dominators."""
        if node == SHARED:
            raise ValueError("only a block or a root has fields")
        return PureFields(self._graph, self, node, fields)

    def blocks_at(self, first: int, end: int) -> array[int]:
        """See fields.Tree."""
        return array("I", self._nodes[first:end])

    def count_at(self, place: int) -> int:
        """See fields.Tree."""
        return self._counts[place]

    def parent_at(self, place: int) -> int:
        """The place of the idom of the node there."""
        return self._parents[place]

    def total_at(self, place: int) -> Totals:
        """What the block there retains."""
        return Totals(self._counts[place], self._bytes[place])

    def _hold(self, index: int, root: int) -> None:
        if self.edge_ignored(index, root_node(root)):
            return
        priority = bisect_right(self._priorities, root)
        best, other = self._held.get(index, (len(self._priorities), SHARED))
        if priority <= best and (priority, root) != (best, other):
            self._held[index] = priority, root if priority < best else SHARED

    def _is_considered(self, index: int) -> bool:
        """Whether the tree has this block."""
        if self._merged and self._merged[index] != NO_ROOT:
            return False
        return not self._lost or self._graph.kinds()[index] in _LOST

    def _compute(self) -> Iterator[None]:
        numbers: dict[int, int] = {}  # of each node, depth first
        nodes: list[int] = []
        parents: list[int] = []
        semis: list[int] = []
        others: dict[int, list[int]] = {}  # by number: numbers above it of those that refer to it
        for index, root in enumerate(self._merged):
            if root not in (NO_ROOT, IGNORED) and not self._graph.blocks.states[index]:
                for edge in self._graph.edges_of(index):
                    self._hold(edge >> 1, root)
        yield from self._visit(numbers, nodes, parents, semis, others)
        ancestors, labels = parents[:], semis[:]
        for number in range(len(nodes) - 1, 0, -1):
            for source in others.get(number, ()):
                # path compression, up to the children of `number`
                while ancestors[source] > number:
                    above = ancestors[source]
                    if labels[above] < labels[source]:
                        labels[source] = labels[above]
                    if ancestors[above] > number:
                        ancestors[source] = ancestors[above]
                    semis[number] = min(semis[number], labels[source])
                    source = ancestors[source]
                semis[number] = min(semis[number], labels[source])
            labels[number] = semis[number]
            yield
        idoms, depths, jumps = [0] * len(nodes), [0] * len(nodes), [0] * len(nodes)
        for number in range(1, len(nodes)):
            idom, semi = parents[number], semis[number]
            while idom > semi:
                idom = jumps[idom] if jumps[idom] > semi else idoms[idom]
            idoms[number] = idom
            depths[number] = depths[idom] + 1
            jump = jumps[idom]
            jumps[number] = jumps[jump] if depths[idom] - depths[jump] == depths[jump] - depths[jumps[jump]] else idom
            yield
        yield from self._lay_out(nodes, idoms)

    def _visit(
        self, numbers: dict[int, int], nodes: list[int], parents: list[int], semis: list[int], others: dict[int, list[int]]
    ) -> Iterator[None]:
        """Number the nodes depth first: from each root in turn the blocks that it alone refers to,
        lowest first; then those that several refer to."""
        targets: list[list[int]] = [[] for _ in range(self.roots)]
        several: list[list[int]] = [[] for _ in self._priorities]
        base = 0  # the first number given in this priority: those before are no business of it
        for index in sorted(self._held):
            if self._is_considered(index):
                priority, root = self._held[index]
                (several[priority] if root == SHARED else targets[root]).append(index)

        def all_roots() -> Iterator[int]:
            nonlocal base
            for priority, end in enumerate(self._priorities):
                base = len(nodes) if priority else 0
                yield from map(root_node, range(self._priorities[priority - 1] if priority else 0, end))
                yield from several[priority]

        def enter(node: int, parent: int) -> None:
            numbers[node] = len(nodes)
            nodes.append(node)
            parents.append(parent)
            semis.append(parent)
            if node >= 0:
                calls.append((numbers[node], iter([edge >> 1 for edge in self._graph.edges_of(node)])))
            else:
                calls.append((numbers[node], all_roots() if node == SHARED else iter(targets[node_root(node)])))

        calls: list[tuple[int, Iterator[int]]] = []
        enter(SHARED, 0)
        yield
        while calls:
            source, rest = calls[-1]
            for target in rest:
                if target >= 0 and nodes[source] >= 0 and self.edge_ignored(target, nodes[source]):
                    continue
                number = numbers.get(target)
                if number is None:
                    if target < 0 or self._is_considered(target):
                        enter(target, source)
                        break
                elif number < base:
                    continue
                elif number > source:
                    semis[number] = min(semis[number], source)
                else:
                    others.setdefault(number, []).append(source)
            else:
                calls.pop()
            yield

    def _lay_out(self, nodes: list[int], idoms: list[int]) -> Iterator[None]:
        """Lay the tree out in preorder: what a node retains directly follows it."""
        counts = [1] * len(nodes)
        for number in range(len(nodes) - 1, 0, -1):
            counts[idoms[number]] += counts[number]
        places, free = [0] * len(nodes), [1] * len(nodes)
        for number in range(1, len(nodes)):
            places[number] = free[idoms[number]]
            free[idoms[number]] += counts[number]
            free[number] = places[number] + 1
        yield
        self._nodes, self._parents, self._counts = [0] * len(nodes), [0] * len(nodes), [0] * len(nodes)
        sizes = self._graph.blocks.sizes
        for number, place in enumerate(places):
            self._nodes[place] = nodes[number]
            self._parents[place] = places[idoms[number]]
            self._counts[place] = counts[number]
        self._bytes = [0 if node < 0 else sizes[node] for node in self._nodes]
        sums = list(accumulate(self._bytes, initial=0))
        self._bytes = [sums[place + count] - sums[place] for place, count in enumerate(self._counts)]
        self._places = {node: place for place, node in enumerate(self._nodes)}

    def place(self, node: int) -> Optional[int]:
        """See fields.Tree."""
        self._after()
        if node >= 0:
            self._graph.index(node)
        elif node != SHARED:
            self._root(node_root(node))
        return self._places.get(node)

    def _below(self, place: int | None) -> Iterator[int]:
        """Places of the children of the node there."""
        if place is None:
            return
        at, end = place + 1, place + self._counts[place]
        while at < end:
            if self._nodes[at] >= 0:
                yield at
            at += self._counts[at]

    def _retained(self, node: int) -> list[int]:
        """Blocks, in the order of the tree."""
        place = self.place(node)
        if place is None:
            return []
        if node == SHARED:
            return [self._nodes[i] for at in self._below(place) for i in range(at, at + self._counts[at])]
        return self._nodes[place + (node < 0) : place + self._counts[place]]

    def _root(self, root: int) -> None:
        if not 0 <= root < self.roots:
            raise IndexError(f"no root {root}")

    def _before(self) -> None:
        if self._work is not None:
            raise RuntimeError("roots come before computing")

    def _after(self) -> None:
        if not self._done:
            raise RuntimeError("compute first")
