"""The dominator tree in pure Python, by semi-NCA.

Number nodes depth first. Find the semidominator of each node, from the last number down. Then find
the immediate dominator of each node, from the first number up: the nearest ancestor of its parent
whose number is at most its semidominator. This last search uses skip links (E. Myers, "An
applicative random-access stack", 1983), because semi-NCA's plain walk takes quadratic time on a
long list whose end refers to many blocks that other blocks refer to as well."""

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
    STEM_EDGES,
    Chain,
    RootSets,
    check_bounds,
    check_references,
    node_root,
    root_node,
)
from findleaks.engine.reference.fields import PureFields
from findleaks.engine.reference.root_sets import PureRootSets
from findleaks.engine.reference.words import words_of
from findleaks.engine.reference.work import run
from findleaks.engine.retained import NO_PLACE, ROOT_NODE, Rows, WholeTree, node_number
from findleaks.engine.terms import Kind, Totals
from findleaks.target.base import Piece

if TYPE_CHECKING:
    from findleaks.engine.reference.graph import PureGraph

_LOST = (Kind.POSSIBLE, Kind.DEFINITE, Kind.INDIRECT)


class PureDominators(WholeTree):
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
        super().__init__(roots, graph.blocks, lost)
        self._graph = graph
        self._bounds, self._owners = bounds, owners
        self._merged: array[int] = array("I")
        self._containers: Optional[tuple[array[int], Sequence[int]]] = None
        self._priorities = [*priorities, roots]  # end of each priority
        self._held: dict[int, tuple[int, int]] = {}  # block: its priority, and its root or SHARED
        self._work: Iterator[None] | None = None
        self._steps = 0
        self._expects_leaf_trees = False
        # Indexed by position. `_counts`: the number of nodes that the node retains. `_sums`: the
        # sum of the sizes of all nodes at lower positions, with one more element at the end.
        self._counts: list[int] = []
        self._sums: list[int] = []

    def scan_roots(self, piece: Piece) -> None:
        self._before()
        arch, bounds = self._graph.blocks.arch, self._bounds
        base, words = words_of(piece, arch)
        for position in self._graph.candidates(piece, words):
            edge = self._graph.resolve(words[position])
            at = bisect_right(bounds, base + position * arch.word) - 1 if edge >= 0 else -1
            if at >= 0 and self._owners[at] != NO_ROOT:
                self._hold(edge >> 1, self._owners[at])

    def root_words(self, words: Sequence[int], root: int) -> None:
        super().root_words(words, root)
        for value in words:
            edge = self._graph.resolve(value)
            if edge >= 0:
                self._hold(edge >> 1, root)

    def refer(self, root: int, blocks: Sequence[int]) -> None:
        super().refer(root, blocks)
        states = self._graph.blocks.states
        for index in blocks:
            if not states[index]:
                self._hold(index, root)

    def refer_lost(self, definite: int, possible: int) -> None:
        super().refer_lost(definite, possible)
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
        super().set_owners(containers, owners)
        self._containers = containers, owners

    def edge_ignored(self, index: int, source: int) -> bool:
        """Return whether an edge into a container's node comes from neither its owner nor another
        node of the container."""
        if self._containers is None:
            return False
        containers, owners = self._containers
        container = containers[index]
        return container != NO_ROOT and owners[container] != source and not (source >= 0 and containers[source] == container)

    def merge_into_roots(self, roots: array[int]) -> None:
        super().merge_into_roots(roots)
        self._merged = roots

    def expect_leaf_trees(self) -> None:
        super().expect_leaf_trees()
        self._expects_leaf_trees = True

    def compute(self, budget: int) -> bool:
        self._begun = True
        if self._work is None:
            self._work = self._compute()
        if not self._done:
            self._steps += max(1, budget)
            self._done = run(self._work, budget)
        return self._done

    def progress(self) -> float:
        return 1.0 if self._done else min(0.99, self._steps / (4 * len(self._graph.blocks) + 1))

    def chain(self, index: int, equal: bool, limit: int = 1 << 22) -> Chain:
        sizes, nodes, held = self._graph.blocks.sizes, self._nodes, self.bytes_at
        place = self.block_place(index)
        size = sizes[index]
        length, least, most, total = 1, size, size, size
        while place is not None:
            below = [at for at in self._children(place, 0) if not equal or sizes[nodes[at]] == size]
            heaviest = min(below, key=lambda at: (-held(at), nodes[at])) if below else None
            if heaviest is None or (not (equal and len(below) == 1) and held(heaviest) * 10 < held(place) * 9):
                break
            if length >= limit:
                return Chain(length, least, most, total, index, True)
            place, index = heaviest, nodes[heaviest]
            length, total = length + 1, total + sizes[index]
            least, most = min(least, sizes[index]), max(most, sizes[index])
        return Chain(length, least, most, total, index, False)

    def within(self, node: int, fields: int) -> PureFields:
        if node == SHARED:
            raise ValueError("only a block or a root has fields")
        return PureFields(self._graph, self, node, fields)

    def root_sets(self, first: int, end: int, roots: array[int], blocks: array[int]) -> RootSets:
        check_references(roots, blocks, self.roots, len(self._graph.blocks))
        self._after()
        return PureRootSets(self._graph, self, (first, end), zip(roots, blocks))

    def count_at(self, place: int) -> int:
        return self._counts[place]

    def bytes_at(self, place: int) -> int:
        return self._sums[place + self._counts[place]] - self._sums[place]

    def parent_at(self, place: int) -> int:
        return self._idoms[place]

    def total_at(self, place: int) -> Totals:
        return Totals(self._counts[place], self.bytes_at(place))

    def _hold(self, index: int, root: int) -> None:
        if self.edge_ignored(index, root_node(root)):
            return
        priority = bisect_right(self._priorities, root)
        best, other = self._held.get(index, (len(self._priorities), SHARED))
        if priority <= best and (priority, root) != (best, other):
            self._held[index] = priority, root if priority < best else SHARED

    def _is_considered(self, index: int) -> bool:
        if self._merged and self._merged[index] != NO_ROOT:
            return False
        return not self._lost or self._graph.kinds()[index] in _LOST

    def _compute(self) -> Iterator[None]:
        numbers: dict[int, int] = {}  # number of each node, depth first
        nodes: list[int] = []
        parents: list[int] = []
        semis: list[int] = []
        others: dict[int, list[int]] = {}  # by number: the higher numbers of nodes that refer to it
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
        yield from self._lay_out(nodes, idoms, *(self._leaf_trees() if self._expects_leaf_trees else (set(), set())))

    def _visit(
        self, numbers: dict[int, int], nodes: list[int], parents: list[int], semis: list[int], others: dict[int, list[int]]
    ) -> Iterator[None]:
        """Number the nodes depth first, from each root in turn. First come blocks that only this
        root refers to, lowest first; last come blocks that several roots refer to."""
        targets: list[list[int]] = [[] for _ in range(self.roots)]
        several: list[list[int]] = [[] for _ in self._priorities]
        base = 0  # lower numbers belong to earlier priorities and are skipped
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

    def _leaf_trees(self) -> tuple[set[int], set[int]]:
        """Return the blocks in leaf trees, and the joint leaves; see
        `Dominators.expect_leaf_trees`."""
        graph, states = self._graph, self._graph.blocks.states
        references = [[edge >> 1 for edge in graph.edges_of(index)] for index in range(len(states))]
        numbers = Counter(target for mine in references for target in mine)
        containers = self._containers[0] if self._containers is not None else None

        def is_candidate(index: int) -> bool:
            is_free = containers is None or containers[index] == NO_ROOT
            return index not in self._held and not states[index] and is_free and self._is_considered(index)

        candidates = list(filter(is_candidate, numbers))
        targets = {index: set(filter(self._is_considered, references[index])) for index in candidates}
        leaves = {index for index in candidates if numbers[index] == 1 and not targets[index]}
        joint = {index for index in candidates if numbers[index] > 1 and not targets[index]}

        def is_stem(index: int) -> bool:
            return targets[index] <= (leaves | joint if len(references[index]) <= STEM_EDGES else leaves)

        return {index for index in candidates if numbers[index] == 1 and is_stem(index)}, joint

    def _lay_out(self, nodes: list[int], idoms: list[int], leaf_trees: set[int], joint: set[int]) -> Iterator[None]:
        """Lay out the nodes in preorder: a node is followed immediately by the nodes that it
        retains. Leaf trees come last, and before them joint leaves, by index."""
        counts = [1] * len(nodes)
        for number in range(len(nodes) - 1, 0, -1):
            counts[idoms[number]] += counts[number]
        places, free = [0] * len(nodes), [1] * len(nodes)

        def order_of(number: int) -> tuple[int, int]:
            node = nodes[number]
            if node in joint and nodes[idoms[number]] not in leaf_trees:
                return 1, node
            return 2 * (node in leaf_trees or node in joint), number

        for number in sorted(range(1, len(nodes)), key=order_of):
            places[number] = free[idoms[number]]
            free[idoms[number]] += counts[number]
            free[number] = places[number] + 1
        yield
        order = sorted(range(len(nodes)), key=places.__getitem__)  # by place: the number
        sizes = self._graph.blocks.sizes
        self._nodes = [node_number(nodes[number]) for number in order]
        self._idoms = [places[idoms[number]] for number in order]
        self._counts = [counts[number] for number in order]
        self._sums = list(accumulate((0 if node >= ROOT_NODE else sizes[node] for node in self._nodes), initial=0))
        found = {node: place for place, node in enumerate(self._nodes)}
        self._numbers = [found.get(index, NO_PLACE) for index in range(len(sizes))]
        self._roots_at = [found[ROOT_NODE | root] for root in range(self.roots)]

    def _children(self, place: int, limit: int) -> list[int]:
        found = []
        at, end = place + 1, place + self._counts[place]
        while at < end:
            if self._nodes[at] < ROOT_NODE:
                found.append(at)
            at += self._counts[at]
        return found

    def _spread(self, place: int, everything: bool) -> Rows:
        block = everything and self._nodes[place] < ROOT_NODE
        return self.rows_at([place] if block else self._children(place, 0), everything)

    def rows_at(self, places: Sequence[int], everything: bool) -> Rows:
        """Return the rows of retained.spreads for the blocks at these places. With `everything`,
        return rows for all blocks that these retain."""
        sizes = self._graph.blocks.sizes
        found: dict[int, list[int]] = {}
        for first in places:
            for place in range(first, first + self._counts[first]) if everything else (first,):
                index = self._nodes[place]
                row = found.setdefault(sizes[index], [sizes[index], 0, 0, 0, index])
                row[1:] = row[1] + 1, row[2] + self._counts[place], row[3] + self.bytes_at(place), min(row[4], index)
        return list(found.values())

    def _by_label(self, labels: array[int], rows: array[int], count: int) -> Sequence[int]:
        ends, totals = [0] * count, [0] * (2 * count)
        for place, node in enumerate(self._nodes):
            label = labels[node] if node < ROOT_NODE else len(rows)
            if label < len(rows) and place >= ends[rows[label]]:
                row = rows[label]
                ends[row] = place + self._counts[place]
                totals[2 * row] += self._counts[place]
                totals[2 * row + 1] += self.bytes_at(place)
        return totals

    def _labels_below(self, labels: array[int], most: int) -> bool:
        return all(label < most or label == NO_ROOT for label in set(labels))
