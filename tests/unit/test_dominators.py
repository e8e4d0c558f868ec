"""Dominators: both engines against an oracle that removes one node at a time and finds the blocks that become unreachable."""

from __future__ import annotations

import functools
import random
from array import array
from collections.abc import Sequence

import graphs
import pytest
from held import Oracle, agrees, compute_dominators, engines, everything, select_by_priority

from findleaks.engine.contract import Engine, Graph
from findleaks.engine.dominators import IGNORED, NO_ROOT, Dominators, root_node

ROOTS = 4


@functools.cache
def make_oracle(seed: int, count: int) -> graphs.Oracle:
    """Return the oracle of a random heap. It is cached for all tests and engines that use this seed, as its references
    take most of the time."""
    return graphs.Oracle(graphs.random_heap(seed, count, 16, 1 + seed % 4, density=(0.05, 0.15, 0.4)[seed % 3]))


def make_graph(engine: Engine, seed: int, count: int) -> tuple[Graph, graphs.Oracle]:
    truth = make_oracle(seed, count)
    return graphs.graph_of(engine, truth.heap), truth


def make_dominators(
    graph: Graph, truth: graphs.Oracle, seed: int, priorities: Sequence[int] = (), kept: tuple[array[int], list[int]] | None = None
) -> tuple[Dominators, list[set[int]]]:
    """Return dominators whose root memory is divided at random among the roots, and the blocks that each root refers to."""
    rng = random.Random(seed)
    bounds = sorted(rng.choices([0x600000, 0x600010, 0x610000, 0x610008, 0x610020, 0x700000], k=rng.randrange(5)))
    owners = [rng.choice([*range(ROOTS), NO_ROOT]) for _ in bounds]
    dominators = graph.dominators(ROOTS, array("Q", bounds), array("I", owners), priorities=priorities)
    if kept is not None:
        dominators.set_owners(*kept)
    heap, targets = truth.heap, [set() for _ in range(ROOTS)]  # type: graphs.Heap, list[set[int]]
    for start, data in heap.root_memory:
        for offset in range(0, len(data), 8):
            below = [owner for bound, owner in zip(bounds, owners) if bound <= start + offset]
            target = truth.target(int.from_bytes(data[offset : offset + 8], "little"))
            if target and below and below[-1] != NO_ROOT:
                targets[below[-1]].add(target[0])
    for piece in heap.root_pieces:
        dominators.scan_roots(piece)
    for value in heap.root_words:
        root = rng.randrange(ROOTS)
        dominators.root_words([value], root)
        target = truth.target(value)
        if target:
            targets[root].add(target[0])
    for _ in range(rng.randrange(4) if truth.blocks else 0):
        root, index = rng.randrange(ROOTS), rng.randrange(len(truth.blocks))
        dominators.refer(root, [index])
        if not truth.blocks[index].state:
            targets[root].add(index)
    return dominators, targets


@pytest.mark.parametrize("seed", range(graphs.share(60)))
def test_random_heaps_against_the_oracle(seed: int) -> None:
    answers = []
    for engine in engines():
        graph, truth = make_graph(engine, seed, 40)
        dominators, targets = make_dominators(graph, truth, seed)
        compute_dominators(dominators, (1, 5, 1 << 20)[seed % 3])
        agrees(
            dominators,
            Oracle([b.size for b in truth.blocks], [[t for t, _ in r] for r in truth.references], [*map(sorted, targets)]),
        )
        answers.append(everything(dominators, len(truth.blocks)))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("seed", range(graphs.share(60)))
def test_sums_by_label_against_the_oracle(seed: int) -> None:
    """The sum of a label is the union of what its blocks retain individually."""
    answers = []
    for engine in engines():
        graph, truth = make_graph(engine, seed, 40)
        dominators, targets = make_dominators(graph, truth, seed)
        compute_dominators(dominators)
        sizes = [block.size for block in truth.blocks]
        oracle = Oracle(sizes, [[t for t, _ in mine] for mine in truth.references], [*map(sorted, targets)])
        rng = random.Random(seed)
        labels = array("I", (rng.choice((0, 1, 2, 3, 4, NO_ROOT)) for _ in sizes))
        rows = array("I", (2, 0, 1, 0))
        unions: list[set[int]] = [set(), set(), set()]
        for index, retained in oracle.held.items():
            if index >= 0 and labels[index] < len(rows):
                unions[rows[labels[index]]] |= retained
        answers.append(dominators.by_label(labels, rows))
        assert answers[-1] == [oracle.totals(union) for union in unions]
        assert dominators.by_label(array("H", (label & 0xFFFF for label in labels)), rows) == answers[-1]
        assert dominators.by_label(labels, array("I")) == []
        with pytest.raises(ValueError, match="labels of 4 bytes"):
            dominators.by_label(array("I", [0]) * (len(sizes) + 1), rows)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("seed", range(graphs.share(60)))
def test_priorities(seed: int) -> None:
    """A block belongs to the first priority that reaches it. The oracle gets a heap without references to the block
    from blocks that only later priorities reach."""
    priorities = ((1,), (2,), (1, 3), (0, 2, 2), (4,))[seed % 5]
    answers = []
    for engine in engines():
        graph, truth = make_graph(engine, seed, 40)
        dominators, targets = make_dominators(graph, truth, seed, priorities)
        references = [sorted({t for t, _ in mine}) for mine in truth.references]
        left, kept = select_by_priority(references, [sorted(mine) for mine in targets], priorities)
        compute_dominators(dominators, (1, 5, 1 << 20)[seed % 3])
        agrees(dominators, Oracle([b.size for b in truth.blocks], left, kept))
        answers.append(everything(dominators, len(truth.blocks)))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("seed", range(graphs.share(60)))
def test_edges_into_containers_are_ignored_unless_from_the_owner(seed: int) -> None:
    """The oracle gets a heap without the edges that are ignored."""
    answers = []
    for engine in engines():
        graph, truth = make_graph(engine, seed, 40)
        rng = random.Random(seed)
        count = len(truth.blocks)
        container_owners = [rng.choice([*range(count), *(root_node(root) for root in range(ROOTS))]) for _ in range(3)] if count else []
        parts = array("I", [rng.choice([NO_ROOT, NO_ROOT, *range(3)]) for _ in truth.blocks])

        def counts(source: int, target: int, parts: array[int] = parts, container_owners: list[int] = container_owners) -> bool:
            part = parts[target]
            return part == NO_ROOT or container_owners[part] == source or (source >= 0 and parts[source] == part)

        dominators, targets = make_dominators(graph, truth, seed, kept=(parts, container_owners))
        compute_dominators(dominators, (1, 5, 1 << 20)[seed % 3])
        left = [[t for t, _ in mine if counts(index, t)] for index, mine in enumerate(truth.references)]
        kept = [sorted(t for t in mine if counts(root_node(root), t)) for root, mine in enumerate(targets)]
        oracle = Oracle([b.size for b in truth.blocks], left, kept)
        agrees(dominators, oracle)
        answers.append(everything(dominators, count))
        for node in [index for index in range(count) if oracle.retained(index).blocks > 1][:5]:
            fields = sorted(set(left[node]))
            below = dominators.within(node, len(fields))
            for number, block in enumerate(fields):
                below.refer(number, [block])
            for block in range(count):
                below.refer(0, [block] if not counts(node, block) else [])  # a stray word of the owner refers to nothing
            compute_dominators(below)
            held = oracle.held[node] - {node}
            inner = Oracle(oracle.sizes, [[t for t in mine if t in held] for mine in left], [[b] if b in held else [] for b in fields])
            agrees(below, inner)
    assert answers[0] == answers[1]


def test_containers_without_owners_are_refused() -> None:
    for engine in engines():
        graph, truth = make_graph(engine, 1, 40)
        count = len(truth.blocks)
        with pytest.raises(ValueError, match="not one of 1 containers"):
            graph.dominators(2).set_owners(array("I", [1]) * count, [0])
        with pytest.raises(ValueError, match="does not exist"):
            graph.dominators(2).set_owners(array("I", [0]) * count, [root_node(2)])
        with pytest.raises(ValueError, match="3 numbers"):
            graph.dominators(2).set_owners(array("I", [0, 0, 0]), [0])


def test_priorities_out_of_order_are_refused() -> None:
    for engine in engines():
        graph, _ = make_graph(engine, 1, 40)
        for priorities in ((2, 1), (5,), (-1,)):
            with pytest.raises(ValueError, match="priorities descend"):
                graph.dominators(ROOTS, priorities=priorities)


@pytest.mark.parametrize("seed", range(graphs.share(40)))
def test_blocks_merged_into_roots(seed: int) -> None:
    """A merged block is not a node, and its references are references of its root. The oracle gets such a heap."""
    answers = []
    for engine in engines():
        graph, truth = make_graph(engine, seed, 40)
        dominators, targets = make_dominators(graph, truth, seed)
        if seed % 2:
            dominators.expect_leaf_trees()
        rng = random.Random(seed)
        stands = array("I", [rng.choice([NO_ROOT, NO_ROOT, IGNORED, *range(ROOTS)]) for _ in truth.blocks])
        dominators.merge_into_roots(stands)
        compute_dominators(dominators, (1, 5, 1 << 20)[seed % 3])
        left = [
            [target for target, _ in mine if stands[target] == NO_ROOT] if stands[index] == NO_ROOT else []
            for index, mine in enumerate(truth.references)
        ]
        for index, mine in enumerate(truth.references):
            if stands[index] < ROOTS and not truth.blocks[index].state:
                targets[stands[index]] |= {target for target, _ in mine}
        targets = [{target for target in mine if stands[target] == NO_ROOT} for mine in targets]
        agrees(dominators, Oracle([b.size for b in truth.blocks], left, [*map(sorted, targets)]))
        answers.append(everything(dominators, len(truth.blocks)))
    assert answers[0] == answers[1]


def test_merging_into_no_root_is_refused() -> None:
    for engine in engines():
        graph, truth = make_graph(engine, 1, 40)
        dominators = graph.dominators(2)
        with pytest.raises(ValueError, match="not one of 2 roots"):
            dominators.merge_into_roots(array("I", [2]) * len(truth.blocks))
        with pytest.raises(ValueError, match="numbers of 4 bytes"):
            dominators.merge_into_roots(array("I", [0]))
