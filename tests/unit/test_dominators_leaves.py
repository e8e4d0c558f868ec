"""Test dominator trees of heaps with many leaf trees, to which the C engine gives no numbers. Test sums of sizes of any magnitude."""

from __future__ import annotations

import random
import struct
import time
from array import array
from collections.abc import Sequence

import graphs
import pytest
from held import BASE, Oracle, agrees, compute_dominators, engines, everything, make_graph, select_by_priority

from findleaks.engine.dominators import NO_ROOT, root_node
from findleaks.engine.terms import State, Totals

ROOTS = 3


def make_leaves(rng: random.Random, count: int) -> list[list[int]]:
    """Return the targets of each block. The first `count` blocks refer at random to each other, to leaves, and to blocks that refer only to
    leaves. Several blocks refer to each of some further leaves. A few blocks get one more reference to any block."""
    references = [rng.choices(range(count), k=rng.randrange(3)) for _ in range(count)]

    def new(source: int, *targets: int) -> int:
        references.append(list(targets))
        references[source].insert(rng.randrange(len(references[source]) + 1), len(references) - 1)
        return len(references) - 1

    for source in range(count):
        for _ in range(rng.randrange(4)):
            top = new(source)
            for _ in range(rng.choice((0, 0, 1, 1, 2, 12))):
                new(top)
            if rng.randrange(6) == 0:
                new(new(top))
    for _ in range(rng.randrange(5)):
        leaf = len(references)
        references.append([])
        for referrer in rng.choices(range(leaf), k=rng.randrange(1, 4)):
            for _ in range(rng.choice((1, 1, 1, 2, 9))):
                references[referrer].insert(rng.randrange(len(references[referrer]) + 1), leaf)
    for _ in range(rng.randrange(6)):
        references[rng.choice((source, rng.randrange(len(references))))].append(rng.randrange(len(references)))
    return [[target for target in mine if target != index] for index, mine in enumerate(references)]


def shuffle(rng: random.Random, references: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the same references, with the blocks in a random order of addresses."""
    order = rng.sample(range(len(references)), len(references))
    found: list[list[int]] = [[] for _ in references]
    for index, mine in enumerate(references):
        found[order[index]] = [order[target] for target in mine]
    return found


@pytest.mark.parametrize("seed", range(graphs.share(80)))
def test_leaf_trees_against_the_oracle(seed: int) -> None:
    rng = random.Random(seed)
    references = make_leaves(rng, rng.randrange(1, 8))
    references = shuffle(rng, references) if seed % 2 else references
    count = len(references)
    spare = [rng.choice((0, 8, 24, 100)[: 3 + seed % 2]) for _ in range(count)]
    targets = [rng.choices(range(count), k=rng.randrange(3)) for _ in range(ROOTS)]
    priorities = ((), (1,), (1, 2))[seed % 3]
    owner = rng.randrange(count)
    parts = array("I", [0 if seed % 4 == 0 and rng.randrange(5) == 0 else NO_ROOT for _ in range(count)])
    left = [[t for t in mine if parts[t] == NO_ROOT or owner == index or parts[index] == 0] for index, mine in enumerate(references)]
    left, kept = select_by_priority(left, [[t for t in mine if parts[t] == NO_ROOT] for mine in targets], priorities)
    answers = []
    for engine in engines():
        graph = make_graph(engine, references, spare, interior=seed % 5 == 0)
        dominators = graph.dominators(ROOTS, priorities=priorities)
        dominators.expect_leaf_trees()
        dominators.set_owners(parts, [owner])
        for root, mine in enumerate(targets):
            dominators.refer(root, mine)
        compute_dominators(dominators, (1, 7, 1 << 20)[seed % 3])
        agrees(dominators, Oracle([graph.blocks.size(index) for index in range(count)], left, kept))
        answers.append(everything(dominators, count))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("first", [0, 1])
def test_stems_of_two_priorities_with_one_leaf(first: int) -> None:
    """Two blocks refer to one stem each, and both stems refer to one leaf. Only the stem of the higher priority retains the leaf."""
    one, other, one_stem, other_stem, leaf, last = range(6)
    references = [[one_stem], [other_stem], [leaf], [leaf, last], [], []]
    targets = [[one], [other]] if first == 0 else [[other], [one]]
    left, kept = select_by_priority(references, targets, (1,))
    answers = []
    for engine in engines():
        graph = make_graph(engine, references, [0] * 6)
        dominators = graph.dominators(2, priorities=(1,))
        dominators.expect_leaf_trees()
        for root, mine in enumerate(targets):
            dominators.refer(root, mine)
        compute_dominators(dominators, 1 << 20)
        agrees(dominators, Oracle([graph.blocks.size(index) for index in range(6)], left, kept))
        answers.append(everything(dominators, 6))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("unit", [1, 16])
@pytest.mark.parametrize("large", [1 << 20, 1 << 33, 1 << 40])
def test_sums_of_sizes_of_any_magnitude(large: int, unit: int) -> None:
    """Sums may fit in 32 bits as bytes, only in units of 16 bytes, or not at all."""
    sizes = [16, large, large + unit, 48, large]
    starts = [BASE + at * (1 << 41) for at in range(len(sizes))]
    words = struct.pack("<2Q", starts[1], starts[2])
    blocks = [graphs.Block(start, size, State.IN_USE) for start, size in zip(starts, sizes)]
    for engine in engines():
        heap = graphs.Heap(16, blocks, [(BASE, words)], [], [])
        heap.pieces = [graphs.piece(BASE, words)]
        graph = graphs.graph_of(engine, heap)
        dominators = graph.dominators(2)
        dominators.refer(0, [0, 3])
        dominators.refer(1, [4])
        compute_dominators(dominators)
        assert dominators.sum_retained(0) == Totals(3, 16 + 2 * large + unit)
        assert dominators.by_root() == [Totals(4, 64 + 2 * large + unit), Totals(1, large)]
        assert [child.bytes for child in dominators.children(0, 9)] == [large + unit, large]
        assert dominators.idom(2) == 0 and dominators.idom(4) == root_node(1)
        assert dominators.total() == Totals(5, sum(sizes))


@pytest.mark.parametrize("distance", [0, 1])
def test_shared_leaves_of_a_long_list(distance: int) -> None:
    """Each node of a list refers to a leaf, to which another block refers, too. With distance 1, this is the next node but one, otherwise
    an array. The search for the dominators of all leaves is not quadratic."""
    length = 150_000
    references = [[node + 1, length + 1 + node] for node in range(length)]
    references[-1].pop(0)
    for node in range(2, length * distance):
        references[node].append(length + 1 + node - 2)
    references.append([length + 1 + node for node in range(length)] if not distance else [])
    references += [[] for _ in range(length)]
    tree = make_graph(graphs.native(), references).dominators(1)
    tree.expect_leaf_trees()
    tree.refer(0, [0, length])
    begin = time.process_time()
    compute_dominators(tree, 1 << 16)
    assert time.process_time() - begin < 2
    for node in range(0, length - 2, 1009):
        assert tree.idom(length + 1 + node) == (node if distance else root_node(0))
        assert tree.sum_retained(node).blocks == (2 if distance else 1) * (length - node)
    assert tree.total().blocks == 2 * length + 1


def test_leaf_trees_are_only_used_for_complete_trees() -> None:
    for engine in engines():
        dominators = make_graph(engine, [[1], []]).dominators(1)
        dominators.refer(0, [0])
        compute_dominators(dominators)
        with pytest.raises(ValueError, match="only a whole tree can leave out leaf trees"):
            dominators.within(0, 1).expect_leaf_trees()
        with pytest.raises(RuntimeError, match="record roots before computing"):
            dominators.expect_leaf_trees()


@pytest.mark.parametrize("length", [100, 140, 33_000])
def test_numbers_of_blocks_that_need_more_than_one_byte(length: int) -> None:
    """Each node of a list refers to a leaf; the first one also refers to an array of leaves. The C engine stores the number of blocks
    that each node retains in 1 byte, unless more than 1 in 32 of these numbers need more. Here, none, a few or many do."""
    array_length = 2 * length + 1000
    references = [[node + 1, length + node] for node in range(length)]
    references[-1] = [2 * length - 1]
    references[0] += [2 * length]
    references += [[] for _ in range(length)]
    references += [list(range(2 * length + 1, 2 * length + 1 + array_length)), *([] for _ in range(array_length))]
    graph = make_graph(graphs.native(), references)
    tree = graph.dominators(1)
    tree.expect_leaf_trees()
    tree.refer(0, [0])
    compute_dominators(tree)
    top = Totals(array_length + 1, 16 * array_length)
    assert tree.sum_retained(2 * length) == top
    assert [child.block for child in tree.children(2 * length, 2)] == [2 * length + 1, 2 * length + 2]
    for node in {*range(1, length, 1009), length - 1}:
        # The last node has one word, the others have two.
        assert tree.sum_retained(node) == Totals(2 * (length - node), 24 * (length - node) - 8)
        assert tree.idom(node) == node - 1 and tree.sum_retained(length + node) == Totals(1, 8)
    whole = Totals(2 * length + top.blocks, 24 * length + top.bytes)
    assert tree.sum_retained(0) == tree.by_root()[0] == tree.total() == whole
    assert tree.idom(2 * length) == 0 and tree.idom(2 * length + 1) == 2 * length
    labels = array("I", [*([0] * length), *([1] * length), 2, *([1] * array_length)])
    assert tree.by_label(labels, array("I", [0, 1, 2])) == [whole, Totals(length + array_length, 8 * (length + array_length)), top]
    assert len(set(tree.members(0, 0, whole.blocks))) == whole.blocks


def test_numbers_of_blocks_near_the_limits_of_one_and_two_bytes() -> None:
    """A block refers once to each top of a leaf tree, and twice to each top of another tree. The C engine stores numbers below 255 in 1
    byte, and the others in a list."""
    counts, others = [1, 2, 253, 254, 255, 256, 257, 65_535, 65_536], [1, 254, 255, 256, 65_535]
    references: list[list[int]] = [[]]

    def new(*targets: int) -> int:
        references.append(list(targets))
        return len(references) - 1

    tops = [new(*(new() for _ in range(count - 1))) for count in counts]
    shared = [new(*(new() for _ in range(count - 1))) for count in others]
    references[0] = [*tops, *shared, *shared]
    graph = make_graph(graphs.native(), references)
    tree = graph.dominators(1)
    tree.expect_leaf_trees()
    tree.refer(0, [0])
    compute_dominators(tree, 10_000)
    for top, count in [*zip(tops, counts), *zip(shared, others)]:
        assert tree.sum_retained(top) == Totals(count, 8 * max(count - 1, 1) + 8 * (count - 1))
        assert tree.idom(top) == 0 and len(tree.children(top, 300)) == min(count - 1, 300)
        assert sorted(tree.members(top, 0, 1 << 20)) == sorted([top, *references[top]])
        assert tree.within(top, 1).compute(1 << 20)
        for below in references[top][:1] + references[top][-1:]:
            assert (tree.idom(below), tree.sum_retained(below)) == (top, Totals(1, 8))
    blocks = len(references)
    assert tree.total().blocks == tree.sum_retained(0).blocks == blocks
    assert sorted(tree.members(0, 0, blocks)) == list(range(blocks))


@pytest.mark.parametrize("seed", range(graphs.share(20)))
def test_fields_of_owners_with_leaf_trees(seed: int) -> None:
    """As in a tree that numbers all blocks, for each block as an owner, also for those in a leaf tree."""
    rng = random.Random(seed)
    references = shuffle(rng, make_leaves(rng, rng.randrange(1, 8)))
    count = len(references)
    graphs_made = [make_graph(engine, references) for engine in engines()]
    trees = [graphs_made[0].dominators(1), *(graph.dominators(1) for graph in graphs_made)]
    targets = rng.choices(range(count), k=3)
    for tree, expects in zip(trees, (False, True, True)):
        if expects:
            tree.expect_leaf_trees()
        tree.refer(0, targets)
        compute_dominators(tree, (1, 7, 1 << 20)[seed % 3])
    for node in [*range(count), root_node(0)]:
        words = references[node] if node >= 0 else targets
        answers = []
        for tree, graph in zip(trees, [graphs_made[0], *graphs_made]):
            below = tree.within(node, 3)
            for field in range(3):
                below.refer(field, words[field::6])
                below.root_words([graph.blocks.address(index) for index in words[field + 3 :: 6]], field)
            compute_dominators(below, (1, 7, 1 << 20)[seed % 3])
            members = [sorted(below.members(root_node(field), 0, count)) for field in range(3)]
            children = [below.children(root_node(field), count) for field in range(3)]
            spreads = [below.spread(root_node(field), 9) for field in range(3)]
            answers.append([below.by_root(), below.sum_shared(), members, children, spreads, [below.idom(index) for index in range(count)]])
        assert answers[0] == answers[1] == answers[2]


def test_fields_with_blocks_and_leaf_trees_in_turn() -> None:
    """The positions of leaf trees are found by a search. It continues at the last position, whatever blocks are between two leaf trees."""
    count = 60_000
    references = [
        [number for at in range(count) for number in (1 + at, 1 + count + at)],
        *([0] for _ in range(count)),
        *([] for _ in range(count)),
    ]
    graph = make_graph(graphs.native(), references)
    tree = graph.dominators(1)
    tree.expect_leaf_trees()
    tree.refer(0, [0])
    compute_dominators(tree)
    below = tree.within(0, 1)
    begin = time.process_time()
    below.refer(0, references[0])
    compute_dominators(below)
    assert below.by_root() == [Totals(2 * count, 16 * count)]
    assert time.process_time() - begin < 0.4
