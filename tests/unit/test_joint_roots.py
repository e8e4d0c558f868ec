"""Both engines find roots that retain memory only together, in heaps of tables that refer to the same blocks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from held import engines
from word_heaps import HEAP, Memory

from findleaks.audit.owner import Owner, OwnerSort
from findleaks.audit.owners import Owners, join_owners
from findleaks.engine.contract import Engine, Graph
from findleaks.engine.dominators import Dominators, root_node
from findleaks.engine.terms import Totals
from findleaks.graph.joint_roots import MOST_ROOTS, find_joint_roots, join_names, join_roots
from findleaks.target.arch import X86_64
from findleaks.target.base import Piece, Range

ENTRIES = 40  # of each table


def build(engine: Engine, tables: int, users: Sequence[Sequence[int]]) -> tuple[Graph, list[int]]:
    """Return a graph of tables and other blocks, and the addresses of the tables. The other blocks form sets of ENTRIES blocks. `users`:
    for each set, the tables that refer to its blocks."""
    width = ENTRIES * len(users)
    heap = Memory(X86_64, tables * width + 4 * width)
    starts = [heap.block(table * width, width) for table in range(tables)]
    for number, entry in enumerate(range(width)):
        block = heap.block(tables * width + 4 * entry, 4)
        for table in users[number // ENTRIES]:
            heap.put(table * width + entry, block)
    blocks = heap.built(engine)
    graph = engine.graph(blocks)
    graph.scan_blocks(Piece(HEAP, memoryview(heap.data)))
    graph.settle()
    return graph, starts


def compute(graph: Graph, starts: Sequence[int], eligible: int, root_of: Sequence[int] = ()) -> Dominators:
    """Return the dominators in which each table has a root, by default a different one for each."""
    tree = graph.dominators(len(starts), priorities=[eligible])
    for number, start in enumerate(starts):
        tree.root_words([start], root_of[number] if root_of else number)
    while not tree.compute(1 << 20):
        pass
    return tree


def find(engine: Engine, tables: int, users: Sequence[Sequence[int]], eligible: int) -> list[tuple[int, ...]]:
    graph, starts = build(engine, tables, users)
    return find_joint_roots(compute(graph, starts, eligible), graph.referrers, eligible)


def join(engine: Engine, tables: int, users: Sequence[Sequence[int]]) -> tuple[Sequence[tuple[int, ...]] | None, int]:
    """Return the sets that `join_roots` accepts, and how often it computed dominators."""
    graph, starts = build(engine, tables, users)
    trees = []

    def rebuild(joint: Sequence[tuple[int, ...]]) -> tuple[Sequence[tuple[int, ...]], Sequence[Totals]]:
        first = {number: some[0] for some in joint for number in some}
        trees.append(compute(graph, starts, tables, [first.get(number, number) for number in range(tables)]))
        return joint, [trees[-1].sum_retained(root_node(some[0])) for some in joint]

    return join_roots(compute(graph, starts, tables), graph.referrers, tables, rebuild, str), len(trees)


@pytest.mark.parametrize("engine", engines(), ids=lambda engine: engine.name)
def test_roots_of_shared_blocks(engine: Engine) -> None:
    assert find(engine, 3, [(0, 1)], 3) == [(0, 1)]
    assert find(engine, 4, [(0, 1), (2, 3)], 4) == [(0, 1), (2, 3)]
    assert find(engine, 3, [(0, 1), (1, 2)], 3) == [(0, 1, 2)]
    assert find(engine, 3, [(0,), (1,), (2,)], 3) == []


@pytest.mark.parametrize("engine", engines(), ids=lambda engine: engine.name)
def test_roots_that_are_not_joined(engine: Engine) -> None:
    assert find(engine, MOST_ROOTS + 1, [tuple(range(MOST_ROOTS + 1))], MOST_ROOTS + 1) == []
    assert find(engine, 3, [(1, 2)], 1) == []  # roots of the second priority
    assert find(engine, 3, [(0, 2)], 2) == []  # root 0 has priority, and retains all blocks


@pytest.mark.parametrize("engine", engines(), ids=lambda engine: engine.name)
def test_roots_that_retain_little_together(engine: Engine) -> None:
    assert join(engine, 4, [(0, 1), (2, 3)]) == ([(0, 1), (2, 3)], 1)
    assert join(engine, 3, [(0,)] * 4 + [(1,)] * 4 + [(0, 1)] * 2) == (None, 1)  # each root retains more alone
    assert join(engine, 4, [(0, 1)] * 4 + [(2,), (2, 3)]) == ([(0, 1)], 2)  # less than a tenth of the memory
    assert join(engine, 2, [(0,)] * 24 + [(0, 1)]) == (None, 0)


@pytest.mark.parametrize("engine", engines(), ids=lambda engine: engine.name)
def test_roots_of_one_large_block(engine: Engine) -> None:
    heap = Memory(X86_64, 2100)
    starts = [heap.block(0, 2), heap.block(2, 2)]
    queue = heap.block(4, 2000)
    heap.put(0, queue)
    heap.put(2, queue)
    graph = engine.graph(heap.built(engine))
    graph.scan_blocks(Piece(HEAP, memoryview(heap.data)))
    graph.settle()
    tree = compute(graph, starts, 2)
    for names, joined in ((("a.queue", "b.queue"), []), (("a.queue", "a.items"), [(0, 1)])):
        assert find_joint_roots(tree, graph.referrers, 2, names.__getitem__) == joined


def test_names() -> None:
    assert join_names(["REG.@by_id", "REG.@all"]) == "REG: @by_id and @all"
    assert join_names(["App::QUEUE", "App::CACHE", "App::LOG"]) == "App: QUEUE, CACHE and LOG"
    assert join_names(["Registry->byId", "Registry->recent"]) == "Registry: byId and recent"
    assert join_names(["shop.orders.cache", "shop.users.index"]) == "shop: orders.cache and users.index"
    assert join_names(["shop.cache", "store.index"]) == "shop.cache and store.index"
    assert join_names(["cache", "cached"]) == "cache and cached"
    assert join_names(["$all", "$index"]) == "$all and $index"
    assert join_names(["table.0", "table.1"]) == "table.0 and table.1"
    assert join_names(["io::read(io::A)::table", "io::read(io::B)::table"]) == "io: read(io::A)::table and read(io::B)::table"
    assert join_names(["all<io::A>::first", "all<io::B>::first"]) == "all<io::A>::first and all<io::B>::first"


def test_one_variable_of_several_threads() -> None:
    """A thread-local variable is named once, although each thread has a copy."""
    places = [(thread, f"prog, thread-local, thread {thread}") for thread in (2, 3)]
    owners = Owners(Owner(OwnerSort.THREAD_LOCAL, "cache", where, at, [Range(64 * at, 64 * at + 8)]) for at, where in places)
    joined, (number,) = join_owners(owners, [(0, 1)])
    assert joined.all[number].label == "cache (prog, thread-local, thread 2 and prog, thread-local, thread 3)"
