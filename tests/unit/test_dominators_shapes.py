"""Dominators of typical heaps, and of heaps that make algorithms slow or deep; fields of owners; leaked memory; lists as chains."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence

import graphs
import heaps
import pytest
from fake import FakeTarget
from held import Oracle, agrees, compute_dominators, engines, everything, make_graph, tree_of

from findleaks.engine.contract import Engine
from findleaks.engine.dominators import SHARED, Chain, Dominators, root_node
from findleaks.engine.terms import Kind, Totals
from findleaks.errors import Interrupted

ENGINES = pytest.mark.parametrize("engine", engines(), ids=["native", "pure"])


def make_digraph(rng: random.Random, count: int, degree: int) -> list[list[int]]:
    """Return random references: cycles, several to one block, none from a block to itself."""
    return [[t for t in rng.choices(range(count), k=rng.randrange(degree + 1)) if t != index] for index in range(count)]


@pytest.mark.parametrize("seed", range(graphs.share(60)))
def test_random_digraphs_against_the_oracle(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randrange(1, 30)
    references = make_digraph(rng, count, rng.choice((1, 2, 3, 40)))
    spare = [rng.choice((0, 8, 100)) for _ in range(count)]
    targets = [sorted(set(rng.choices(range(count), k=rng.randrange(3)))) for _ in range(3)]
    answers = []
    for engine in engines():
        graph = make_graph(engine, references, spare, gap=seed % 2 * 4096, interior=seed % 3 == 0)
        dominators = tree_of(graph, targets, (1, 7, 1 << 20)[seed % 3])
        agrees(dominators, Oracle([graph.blocks.size(i) for i in range(count)], references, targets))
        answers.append(everything(dominators, count))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("seed", range(graphs.share(30)))
def test_fields_against_the_oracle(seed: int) -> None:
    """Fields are all words of a block, or all references of a root. The oracle gets the blocks that the owner retains,
    with the fields as roots."""
    rng = random.Random(seed)
    count = rng.randrange(2, 30)
    references = make_digraph(rng, count, rng.choice((2, 3, 8)))
    targets = [sorted(set(rng.choices(range(count), k=3))) for _ in range(2)]
    for node in [*range(count), root_node(0), root_node(1)]:
        words = references[node] if node >= 0 else targets[-2 - node]
        number = rng.randrange(1, 4)
        fields = [[word for word in words if word % number == field] for field in range(number)]
        answers = []
        for engine in engines():
            graph = make_graph(engine, references)
            whole = tree_of(graph, targets)
            below = whole.within(node, number)
            for field, mine in enumerate(fields):
                below.refer(field, mine[::2])
                below.root_words([graph.blocks.address(block) for block in mine[1::2]], field)
            compute_dominators(below, (1, 7, 1 << 20)[seed % 3])
            oracle = Oracle([graph.blocks.size(i) for i in range(count)], references, targets)
            held = oracle.held.get(node, set()) - {node}
            inner = [[t for t in mine if t in held] if index in held else [] for index, mine in enumerate(references)]
            agrees(below, Oracle(oracle.sizes, inner, [[t for t in mine if t in held] for mine in fields]))
            answers.append(everything(below, count))
            assert sum(total.bytes for total in below.by_root()) + below.sum_shared().bytes == whole.sum_retained(node).bytes - (
                graph.blocks.size(node) if node >= 0 and node in oracle.reached else 0
            )
        assert answers[0] == answers[1]


def make_single_list(count: int) -> list[list[int]]:
    return [[index + 1] if index + 1 < count else [] for index in range(count)]


def make_double_list(count: int) -> list[list[int]]:
    return [[near for near in (index + 1, index - 1) if 0 <= near < count] for index in range(count)]


def random_tree(count: int, up: bool) -> list[list[int]]:
    rng = random.Random(7)
    references: list[list[int]] = [[] for _ in range(count)]
    for index in range(1, count):
        parent = rng.randrange(max(0, index - 50), index)
        references[parent].append(index)
        if up:
            references[index].append(parent)
    return references


def make_owned_list(count: int) -> list[list[int]]:
    """Return a list whose nodes all point to its owner. The owner is the first block."""
    return [[1], *[[0, index + 1] if index + 1 < count else [0] for index in range(1, count)]]


def is_chain(dominators: Dominators, order: Sequence[int]) -> bool:
    """Check that each block of `order` is retained by the block before it, and retains all blocks after it."""
    return all(
        dominators.idom(b) == a and dominators.sum_retained(b).blocks == len(order) - 1 - n
        for n, (a, b) in enumerate(zip(order, order[1:]))
    )


def choose_length(engine: Engine) -> int:
    """Return the number of nodes of a long list: few enough for the slower engine, and for tests under sanitizers."""
    return 40_000 if engine.name == "native" and not graphs.SANITIZED else 8_000


@ENGINES
@pytest.mark.parametrize("shape", [make_single_list, make_double_list, make_owned_list])
def test_nodes_of_a_long_list_retain_all_later_nodes(engine: Engine, shape: Callable[[int], list[list[int]]]) -> None:
    """Time does not depend on depth: no recursion, no quadratic algorithm."""
    count = choose_length(engine)
    dominators = tree_of(make_graph(engine, shape(count)), [[0], []])
    assert dominators.idom(0) == root_node(0)
    assert is_chain(dominators, range(count))
    assert dominators.by_root() == [dominators.total(), Totals(0, 0)]
    chain = dominators.chain(1, equal=False)
    bytes_ = [dominators.sum_retained(index).bytes for index in range(count - 40, count)]
    end = count - 40 + next(at for at, (one, after) in enumerate(zip(bytes_, bytes_[1:])) if after * 10 < one * 9)
    assert (chain.length, chain.end, chain.more) == (end, end, False)
    assert dominators.chain(1, equal=True).length >= count - 2


@ENGINES
def test_owner_retains_a_doubly_linked_list_with_a_tail_pointer(engine: Engine) -> None:
    count = choose_length(engine)
    references = [
        *[[t + 1 for t in mine] for mine in [[0, count - 1], *make_double_list(count)[0:0]]],
        *[[t + 1 for t in mine] for mine in make_double_list(count)],
    ]
    dominators = tree_of(make_graph(engine, references), [[0]])
    assert dominators.idom(0) == root_node(0)
    assert {dominators.idom(index) for index in range(1, count + 1)} == {0}
    found = dominators.spread(0, 8)
    assert sorted((s.size, s.children, s.blocks) for s in found) == [(8, 2, 2), (16, count - 2, count - 2)]
    assert dominators.chain(0, equal=False) == Chain(1, 16, 16, 16, 0, False)


@ENGINES
@pytest.mark.parametrize("up", [False, True])
def test_parent_pointers_change_nothing(engine: Engine, up: bool) -> None:
    count = choose_length(engine)
    references = random_tree(count, up)
    dominators = tree_of(make_graph(engine, references), [[0]])
    parents = {child: parent for parent, mine in enumerate(random_tree(count, False)) for child in mine}
    assert [dominators.idom(index) for index in range(1, count)] == [parents[index] for index in range(1, count)]


@ENGINES
def test_a_list_whose_end_refers_to_what_another_array_refers_to(engine: Engine) -> None:
    """For each block, the search for its dominator walks from the end of the list to its beginning: step by step, this
    would take 400 million steps."""
    count = choose_length(engine)
    half = count // 2
    shared = range(half, 2 * half)
    references = [*[[index + 1] for index in range(half - 1)], [*shared], *[[] for _ in shared], [*shared]]
    dominators = tree_of(make_graph(engine, references), [[0], [2 * half]])
    assert {dominators.idom(index) for index in shared} == {SHARED}
    assert is_chain(dominators, range(half))
    assert dominators.sum_shared() == Totals(half, 8 * half)
    below = make_graph(engine, [[1, 2 * half + 1], *[[t + 1 for t in mine] for mine in references]])
    dominators = tree_of(below, [[0]])
    assert {dominators.idom(index + 1) for index in shared} == {0}


@pytest.mark.parametrize("degree", [2, 3, 8])
def test_large_random_digraphs_are_the_same_to_both_engines(degree: int) -> None:
    rng = random.Random(degree)
    count = 4000
    references = make_digraph(rng, count, degree)
    targets = [rng.choices(range(count), k=3) for _ in range(5)]
    answers = []
    for engine in engines():
        dominators = tree_of(make_graph(engine, references), targets, 1000)
        answers.append([[dominators.idom(i), dominators.sum_retained(i)] for i in range(count)] + [[dominators.members(SHARED, 0, count)]])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("popular", [1, 2, 70])
@pytest.mark.parametrize("budget", [1, 40, 1 << 20])
def test_many_references_to_few_blocks_are_sorted_in_place(popular: int, budget: int) -> None:
    """The C engine sorts references to earlier blocks by eleven bits of a number at a time: here, by eleven and then by one."""
    rng = random.Random(popular)
    count = 2400
    first = count - popular
    references = [[*rng.choices(range(first, count), k=3), *rng.choices(range(first), k=at % 2)] for at in range(first)]
    references += [[count - 1 if at == first else at - 1] if popular > 1 else [] for at in range(first, count)]
    targets = [list(range(first, count))[:1], list(range(0, first, 3)), list(range(0, first, 2))]
    answers = []
    for engine in engines():
        dominators = tree_of(make_graph(engine, references), targets, budget)
        answers.append([[dominators.idom(i), dominators.sum_retained(i)] for i in range(count)] + [[dominators.members(SHARED, 0, count)]])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("seed", range(graphs.share(30)))
def test_leaked_memory_by_leak_head(seed: int) -> None:
    """The oracle gets the blocks that are definitely or possibly lost. Two roots refer to the leak heads."""
    answers = []
    for engine in engines():
        heap = graphs.random_heap(seed, 40, 16, 1 + seed % 4, density=(0.05, 0.15, 0.4)[seed % 3])
        heap.root_words = heap.root_words[:1]
        graph = graphs.graph_of(engine, heap)
        truth = graphs.Oracle(heap)
        kinds = truth.kinds
        lost = [kind in (Kind.POSSIBLE, Kind.DEFINITE, Kind.INDIRECT) for kind in kinds]
        references = [[t for t, _ in mine if lost[t]] if lost[index] else [] for index, mine in enumerate(truth.references)]
        led = {t for index, mine in enumerate(truth.references) if kinds[index] == Kind.REACHABLE for t, _ in mine} | {
            t for t, _ in truth.roots
        }
        targets = [
            [i for i, kind in enumerate(kinds) if kind == Kind.DEFINITE],
            [i for i, kind in enumerate(kinds) if kind == Kind.POSSIBLE and i in led],
        ]
        dominators = graph.dominators(2, lost=True)
        dominators.refer_lost(0, 1)
        compute_dominators(dominators, (1, 7, 1 << 20)[seed % 3])
        agrees(dominators, Oracle([b.size for b in heap.blocks], references, targets))
        assert dominators.total().blocks == sum(lost)  # everything is reachable from the heads
        answers.append(everything(dominators, len(heap.blocks)))
    assert answers[0] == answers[1]


@ENGINES
def test_chains(engine: Engine) -> None:
    """Four structures: nodes of 64 bytes with a string each; their owner; a list of mixed sizes; a tree, which is not a chain."""
    nodes, strings = range(1, 101), range(101, 201)
    references: list[list[int]] = [[1, 201, 301]]
    references += [[index + 1, index + 100] if index + 1 in nodes else [index + 100] for index in nodes]
    references += [[] for _ in strings]
    references += [[index + 1] if index + 1 < 301 else [] for index in range(201, 301)]
    references += [[t for t in (2 * at + 301, 2 * at + 302) if t < 401] for at in range(1, 101)]
    size = {
        **dict.fromkeys(nodes, 64),
        **dict.fromkeys(strings, 40),
        **{i: 16 + i % 7 * 8 for i in range(201, 301)},
        **dict.fromkeys(range(301, 401), 32),
    }
    spare = [size.get(index, 200) - 8 * len(mine) for index, mine in enumerate(references)]
    dominators = tree_of(make_graph(engine, references, spare), [[0]])
    assert dominators.chain(1, equal=True) == Chain(100, 64, 64, 6400, 100, False)
    assert dominators.chain(1, equal=True, limit=7) == Chain(7, 64, 64, 448, 7, True)
    assert dominators.chain(7, equal=True) == Chain(94, 64, 64, 94 * 64, 100, False)
    mixed = dominators.chain(201, equal=False)
    assert mixed.length > 85 and (mixed.least, mixed.most, mixed.end) == (16, 64, 200 + mixed.length)
    assert dominators.chain(201, equal=True).length < 3
    assert dominators.chain(301, equal=True).length == 1
    assert dominators.spread(0, 9)[0].children == 1
    assert dominators.sizes(1, 2) == [(64, 100), (40, 100)]


@ENGINES
def test_unreachable_blocks(engine: Engine) -> None:
    dominators = tree_of(make_graph(engine, [[1], [], [1, 3], [2]]), [[0], []])
    assert dominators.total() == Totals(2, 16)
    assert [dominators.idom(index) for index in range(4)] == [root_node(0), 0, None, None]
    assert dominators.sum_retained(2) == Totals(0, 0)
    assert dominators.children(2, 9) == dominators.spread(2, 9) == dominators.sizes(2, 9) == []
    assert dominators.members(2, 0, 9) == array("I")
    assert dominators.chain(2, equal=False) == Chain(1, 16, 16, 16, 2, False)
    below = dominators.within(2, 1)
    below.refer(0, [0, 1, 2, 3])
    assert compute_dominators(below).total() == Totals(0, 0)
    assert [below.idom(index) for index in range(4)] == [None] * 4


@ENGINES
def test_no_blocks_at_all(engine: Engine) -> None:
    dominators = tree_of(make_graph(engine, []), [[], []])
    assert dominators.total() == dominators.sum_shared() == Totals(0, 0)
    assert dominators.by_root() == [Totals(0, 0)] * 2
    assert dominators.children(SHARED, 9) == dominators.children(root_node(1), 9) == []
    assert tree_of(make_graph(engine, []), []).total() == Totals(0, 0)


@ENGINES
def test_invalid_arguments_are_refused(engine: Engine) -> None:
    graph = make_graph(engine, [[1], []])
    dominators = graph.dominators(2)
    for ask in (
        dominators.total,
        dominators.by_root,
        lambda: dominators.sum_retained(0),
        lambda: dominators.idom(1),
        lambda: dominators.within(0, 1),
    ):
        with pytest.raises(RuntimeError, match="compute first"):
            ask()
    with pytest.raises(RuntimeError, match="only a tree of leaked blocks"):
        dominators.refer_lost(0, 1)
    for wrong in (
        lambda: dominators.refer(2, [0]),
        lambda: dominators.refer(0, [2]),
        lambda: dominators.refer(0, [-1]),
        lambda: dominators.root_words([], -1),
    ):
        with pytest.raises(IndexError):
            wrong()
    compute_dominators(dominators)
    with pytest.raises(RuntimeError, match="before computing"):
        dominators.refer(0, [0])
    with pytest.raises(RuntimeError, match="before computing"):
        dominators.scan_roots(graphs.piece(0x1000, bytes(64)))
    for node in (2, root_node(2)):
        with pytest.raises(IndexError):
            dominators.sum_retained(node)
        with pytest.raises(IndexError):
            dominators.within(node, 1)
    with pytest.raises(ValueError, match="has fields"):
        dominators.within(SHARED, 1)
    below = dominators.within(root_node(0), 1)
    with pytest.raises(RuntimeError, match="compute first"):
        below.total()
    with pytest.raises(IndexError):
        below.refer(1, [0])
    compute_dominators(below)
    with pytest.raises(ValueError, match="has fields"):
        below.within(root_node(0), 1)
    with pytest.raises(IndexError):
        below.sum_retained(root_node(1))
    for bounds, owners in (([2, 1], [0, 0]), ([1], [2]), ([1], []), ([1], [-1])):
        with pytest.raises(ValueError, match=r"bounds|owner"):
            graph.dominators(2, bounds, owners)


@ENGINES
def test_ctrl_c_between_slices(engine: Engine) -> None:
    """The commands test for an interruption between two slices. An unfinished computation can be dropped."""
    count = choose_length(engine)
    target = FakeTarget({})
    session = heaps.session(target, [], engine)
    dominators = make_graph(engine, make_double_list(count)).dominators(1)
    dominators.refer(0, [0])
    looked: list[float] = []

    def interrupt() -> bool:
        looked.append(dominators.progress())
        return len(looked) == 3

    target.is_interrupted = interrupt  # type: ignore[method-assign]
    assert not dominators.compute(1)
    compute = dominators.compute
    dominators.compute = lambda budget: compute(min(budget, 5000))  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        session.compute(dominators, "who holds what")
    assert len(looked) == 3 and looked == sorted(looked) and 0 < looked[-1] < 1
