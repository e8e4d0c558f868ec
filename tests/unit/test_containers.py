"""Containers that are recognised by their structure: every kind with exact lengths, and memory that is damaged, cyclic,
or only looks like a container."""

from __future__ import annotations

import random
from collections.abc import Callable

import graphs
import pytest
from containers import DATA, HEAP, ROOM, Building

from findleaks.audit.containers import Container
from findleaks.engine.contract import Engine

ENGINES: list[Callable[[], Engine]] = [graphs.native, graphs.pure]
OWNER = DATA + 0x100


@pytest.fixture(params=ENGINES, ids=["native", "pure"])
def engine(request: pytest.FixtureRequest) -> Engine:
    made: Engine = request.param()
    return made


def find_only(made: Building, engine: Engine, count: int = 16) -> Container:
    found = made.found(OWNER, count, engine)
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100, 1000])
def test_a_map_of_libstdcxx(engine: Engine, count: int) -> None:
    made = Building()
    nodes = made.map(OWNER, count)
    found = find_only(made, engine)
    assert (found.what, found.length, found.recorded, found.problem) == ("std::map or set", count, count, "")
    assert sorted(found.nodes) == sorted(nodes)
    assert (found.start, found.end) == (OWNER, OWNER + 48)


def test_a_map_of_libcxx(engine: Engine) -> None:
    made = Building()
    nodes = [made.block(48) for _ in range(3)]
    left, root, right = nodes
    made.put(root, left, right, OWNER + 8, 1)
    made.put(left, 0, 0, root, 0)
    made.put(right, 0, 0, root, 0)
    made.put(OWNER, left, root, 3)
    found = find_only(made, engine)
    assert (found.what, found.length, found.recorded, found.problem) == ("std::map or set", 3, 3, "")
    assert (found.start, found.end) == (OWNER, OWNER + 24)


def test_an_empty_map_is_none(engine: Engine) -> None:
    made = Building()
    made.map(OWNER, 0)
    assert made.found(OWNER, 16, engine) == []


def test_two_maps_in_one_owner(engine: Engine) -> None:
    made = Building()
    made.map(OWNER, 10)
    made.map(OWNER + 48, 20)
    assert [(c.start - OWNER, c.length, c.problem) for c in made.found(OWNER, 12, engine)] == [(0, 10, ""), (48, 20, "")]


def test_a_map_with_a_wrong_count(engine: Engine) -> None:
    made = Building()
    made.map(OWNER, 50)
    made.put(OWNER + 40, 1 << 60)
    found = find_only(made, engine)
    assert found.length == 50
    assert found.problem == f"its header counts {1 << 60:,} nodes, but 50 are linked"


def test_a_node_with_a_wrong_parent_and_its_subtree_are_left_out(engine: Engine) -> None:
    made = Building()
    nodes = made.map(OWNER, 7)
    made.put(nodes[1] + 8, nodes[5])
    found = find_only(made, engine)
    assert found.length == 4
    assert found.problem == f"node {nodes[1]:#x} gives {nodes[5]:#x} as its parent, which does not refer to it"


def test_wrong_colours(engine: Engine) -> None:
    made = Building()
    nodes = made.map(OWNER, 15)
    made.put(nodes[1], 7)
    assert find_only(made, engine).problem == f"node {nodes[1]:#x} has colour 0x7"
    made.put(nodes[1], 0)
    assert find_only(made, engine).problem == f"node {nodes[0]:#x} and its parent are both red"
    assert find_only(made, engine).length == 15


def test_a_cyclic_tree(engine: Engine) -> None:
    made = Building()
    nodes = made.map(OWNER, 15)
    made.put(nodes[2] + 16, nodes[7])  # the left child of a leaf is the root
    found = find_only(made, engine)
    assert found.length == 15
    assert f"node {nodes[7]:#x} gives" in found.problem


def test_one_node_as_both_children(engine: Engine) -> None:
    made = Building()
    nodes = made.map(OWNER, 3)
    made.put(nodes[1] + 24, nodes[0])
    found = find_only(made, engine)
    assert found.length == 2
    assert found.problem == f"node {nodes[1]:#x} has {nodes[0]:#x} as both children"


def test_a_child_that_cannot_be_read(engine: Engine) -> None:
    made = Building()
    nodes = made.map(OWNER, 3)
    made.put(nodes[0] + 24, 0x123456789000)
    found = find_only(made, engine)
    assert found.length == 3
    assert found.problem == f"node {0x123456789000:#x} cannot be read"


def test_an_unordered_map(engine: Engine) -> None:
    made = Building()
    nodes = made.unordered(OWNER, 40)
    found = find_only(made, engine)
    assert (found.what, found.length, found.recorded, found.problem) == ("std::unordered_map or set", 40, 40, "")
    assert list(found.nodes) == nodes
    assert (found.start, found.end, list(found.tables)) == (OWNER, OWNER + 56, [made.get(OWNER)])


def test_an_unordered_map_with_its_single_bucket(engine: Engine) -> None:
    made = Building()
    (node,) = made.chain(1, 24, 0)
    made.put(OWNER, OWNER + 48, 1, node, 1, 0x3F800000, 0, OWNER + 16)
    found = find_only(made, engine)
    assert (found.what, found.length, list(found.tables)) == ("std::unordered_map or set", 1, [])


def test_a_cyclic_unordered_map(engine: Engine) -> None:
    made = Building()
    nodes = made.unordered(OWNER, 40)
    made.put(nodes[-1], nodes[10])
    found = find_only(made, engine)
    assert found.length == 40
    assert found.problem == f"the list has a cycle at {nodes[10]:#x} after 40 nodes"


def test_an_unordered_map_with_a_wrong_count(engine: Engine) -> None:
    made = Building()
    made.unordered(OWNER, 5)
    made.put(OWNER + 24, 6)
    assert find_only(made, engine).problem == "its header counts 6 elements, but 5 are linked"


@pytest.mark.parametrize("link", [0, 8, 24, 40])
def test_a_list_with_its_link_anywhere(engine: Engine, link: int) -> None:
    made = Building()
    nodes = made.chain(30, 48, link)
    made.put(OWNER, nodes[0])
    found = find_only(made, engine)
    assert (found.what, found.length, list(found.nodes), found.problem) == ("linked list", 30, nodes, "")


def test_a_list_with_a_tail_pointer_and_a_cursor(engine: Engine) -> None:
    made = Building()
    nodes = made.chain(30, 48, 24)
    made.put(OWNER, nodes[0], nodes[-1], 30, nodes[7])
    found = find_only(made, engine)
    assert [(s.start - OWNER, s.end - OWNER) for s in found.spans] == [(0, 8), (8, 16), (24, 32)]


def test_a_doubly_linked_list(engine: Engine) -> None:
    made = Building()
    nodes = made.chain(12, 40, 8)
    for before, node in zip([0, *nodes], nodes):
        made.put(node, before)
    made.put(OWNER, nodes[0], nodes[-1])
    found = find_only(made, engine)
    assert (found.what, found.length, found.problem) == ("doubly linked list", 12, "")


def test_a_doubly_linked_list_that_is_counted(engine: Engine) -> None:
    """A word counts as the length of the list only if its value is right, and if the word after it points to the last node."""
    made = Building()
    nodes = made.chain(12, 40, 8)
    for before, node in zip([0, *nodes], nodes):
        made.put(node, before)
    made.put(OWNER, nodes[0], nodes[-1], 12)
    found = find_only(made, engine)
    assert (found.what, found.length, found.recorded, found.end) == ("doubly linked list", 12, 12, OWNER + 24)
    for words in ((nodes[0], nodes[-1], 13), (nodes[0], nodes[-2], 12)):
        made.put(OWNER, *words)
        assert find_only(made, engine).recorded is None


def test_std_list_and_list_head(engine: Engine) -> None:
    made = Building()
    nodes = made.ring(OWNER, 9, 32, 0)
    made.put(OWNER + 16, 9)
    found = find_only(made, engine)
    assert (found.what, found.length, found.recorded, list(found.nodes)) == ("std::list", 9, 9, nodes)
    made = Building()
    nodes = made.ring(OWNER, 9, 64, 24)
    found = find_only(made, engine)
    assert (found.what, found.length, found.recorded, list(found.nodes), found.problem) == ("circular list", 9, None, nodes, "")


def test_a_ring_with_wrong_back_links(engine: Engine) -> None:
    made = Building()
    nodes = made.ring(OWNER, 9, 32, 0)
    made.put(nodes[4] + 8, nodes[7])
    assert find_only(made, engine).problem == f"the back link of node {nodes[4]:#x} is {nodes[7]:#x} instead of {nodes[3]:#x}"


def test_a_ring_that_is_cut(engine: Engine) -> None:
    made = Building()
    nodes = made.ring(OWNER, 9, 32, 0)
    made.put(nodes[4], 0x4141414141414141)
    found = find_only(made, engine)
    assert found.length == 5
    assert found.problem == f"node {0x4141414141414141:#x} is misaligned"


def test_a_cyclic_list(engine: Engine) -> None:
    made = Building()
    nodes = made.chain(40, 48, 8)
    made.put(nodes[-1] + 8, nodes[3])
    made.put(OWNER, nodes[0])
    found = find_only(made, engine)
    assert found.length == 40
    assert found.problem == f"the list has a cycle at {nodes[3]:#x} after 40 nodes"


def test_a_few_nodes_with_an_invalid_end_are_no_list(engine: Engine) -> None:
    made = Building()
    nodes = made.chain(8, 48, 8)
    made.put(nodes[-1] + 8, 0x117)
    made.put(OWNER, nodes[0])
    assert made.found(OWNER, 16, engine) == []


def test_a_ring_is_not_reported_as_damage(engine: Engine) -> None:
    made = Building()
    nodes = made.chain(20, 48, 8)
    made.put(nodes[-1] + 8, nodes[0])
    made.put(OWNER, nodes[0])
    found = find_only(made, engine)
    assert (found.what, found.length, found.problem) == ("circular linked list", 20, "")


def test_a_list_that_ends_at_a_sentinel_elsewhere(engine: Engine) -> None:
    made = Building()
    nodes = made.chain(20, 48, 8)
    made.put(nodes[-1] + 8, DATA + 0x2000)
    made.put(OWNER, nodes[0])
    found = find_only(made, engine)
    assert (found.length, found.problem) == (20, "")


def test_a_table_of_chains(engine: Engine) -> None:
    made = Building()
    table = made.block(8 * 16)
    nodes = []
    for n in range(50):
        node = made.block(40, n + 1, made.block(40), made.get(table + 8 * (n * 7 % 16)))
        made.put(table + 8 * (n * 7 % 16), node)
        nodes.append(node)
    made.put(OWNER, table, 16, 50)
    found = find_only(made, engine, 3)
    assert (found.what, found.length, found.problem, list(found.tables)) == ("hash table", 50, "", [table])
    assert sorted(found.nodes) == nodes


def test_chains_that_run_into_each_other_or_themselves(engine: Engine) -> None:
    made = Building()
    table = made.block(8 * 8)
    chains = [made.chain(10, 40, 8) for _ in range(4)]
    made.put(table, *(chain[0] for chain in chains))
    made.put(OWNER, table)
    made.put(chains[1][-1] + 8, chains[2][5])
    found = find_only(made, engine, 1)
    assert (found.what, found.length, found.problem) == ("hash table", 40, "two chains share nodes")
    made.put(chains[1][-1] + 8, chains[1][2])
    found = find_only(made, engine, 1)
    assert found.length == 40
    assert found.problem.startswith("a chain forms a cycle: more than")


def test_a_table_as_large_as_its_nodes(engine: Engine) -> None:
    made = Building()
    table = made.block(40)
    made.put(table, *(made.chain(10, 40, 8)[0] for _ in range(4)))
    made.put(OWNER, table)
    found = find_only(made, engine, 1)
    assert (found.what, found.length, found.problem) == ("hash table", 40, "")


def test_vectors(engine: Engine) -> None:
    made = Building()
    table = made.block(136, *(made.block(24) for _ in range(10)))
    made.put(OWNER, table, table + 80, table + 128)
    found = find_only(made, engine, 3)
    assert (found.what, found.length, found.unit) == ("std::vector of pointers", 10, "pointers")
    made = Building()
    table = made.block(136, *range(1, 11))
    made.put(OWNER, table, table + 80, table + 128)
    found = find_only(made, engine, 3)
    assert (found.what, found.length, found.unit) == ("std::vector", 80, "bytes")


def test_a_deque(engine: Engine) -> None:
    made = Building()
    chunks = [made.block(520) for _ in range(3)]
    table = made.block(72, 0, 0, *chunks)
    first, last = chunks[0], chunks[2]
    made.put(OWNER, table, 8, first + 16, first, first + 512, table + 16, last + 8, last, last + 512, table + 32)
    found = find_only(made, engine, 10)
    assert (found.what, found.length, found.unit) == ("std::deque", 512 + 512 - 16 + 8, "bytes")


def test_a_plain_binary_tree(engine: Engine) -> None:
    made = Building()
    nodes = [made.block(40) for _ in range(31)]
    for n, node in enumerate(nodes):
        below = [nodes[c] if c < len(nodes) else 0 for c in (2 * n + 1, 2 * n + 2)]
        made.put(node, n, below[0], below[1])
    made.put(OWNER, nodes[0])
    found = find_only(made, engine, 1)
    assert (found.what, found.length) == ("binary tree", 31)
    made.put(nodes[30] + 8, nodes[3])  # a child of two nodes: no tree
    assert [c.what for c in made.found(OWNER, 1, engine)] != ["binary tree"]


def test_memory_that_looks_like_a_container(engine: Engine) -> None:
    made = Building()
    lone = made.block(48)
    pair = made.block(48, made.block(48))
    odd = made.block(48, made.block(400, made.block(48)))
    made.put(OWNER, lone, 0x1000, pair, odd, OWNER, lone + 8)
    assert made.found(OWNER, 6, engine) == []


def test_both_engines_agree_on_random_words() -> None:
    """Random words, many of them pointers: nothing raises, everything ends, and both engines agree."""
    for seed in range(40):
        rng = random.Random(seed)
        made = Building()
        blocks = [made.block(rng.choice((24, 24, 40, 40, 56, 136))) for _ in range(200)]
        for block in made.blocks:
            for offset in range(0, block.size - 7, 8):
                word = rng.choice((0, rng.choice(blocks), rng.choice(blocks) + 8, rng.getrandbits(64), rng.randrange(64), HEAP + ROOM))
                made.put(block.address + offset, word)
        for n in range(64):
            made.put(OWNER + 8 * n, rng.choice((0, 1, rng.choice(blocks), rng.choice(blocks), OWNER + 8 * n)))
        seen = [
            [(c.what, c.start, c.end, c.length, list(c.nodes), c.problem, c.words) for c in made.found(OWNER, 64, engine())]
            for engine in ENGINES
        ]
        assert seen[0] == seen[1]


def test_blocks_that_refer_to_one_another_are_no_table_of_chains(engine: Engine) -> None:
    """Each block refers to an earlier one, and the array to two of three blocks: no node belongs to only one chain."""
    made = Building()
    blocks: list[int] = []
    for n in range(60):
        blocks.append(made.block(24, blocks[(n * 7919 + 13) % n] if n else 0))
    made.put(OWNER, made.block(8 * 60, *(block if n % 3 else 0 for n, block in enumerate(blocks))))
    found = find_only(made, engine, 1)
    assert (found.what, found.length, found.problem) == ("array of pointers", 40, "")


def test_a_structure_of_a_few_pointers_is_no_array(engine: Engine) -> None:
    made = Building()
    made.put(OWNER, made.block(32, made.block(104), made.block(40), made.block(408), made.block(40)))
    assert made.found(OWNER, 1, engine) == []
    made.put(OWNER, made.block(32, *(made.block(40) for _ in range(4))))  # blocks of one size
    assert find_only(made, engine, 1).what == "array of pointers"


@pytest.mark.parametrize("before", [0, 1])
def test_a_structure_that_begins_with_a_vector(engine: Engine, before: int) -> None:
    """All its words point to blocks. Three of them point into one block: begin, end and capacity of a vector. `before`:
    the number of words before these three."""
    made = Building()
    table = made.block(8 * 41, *(made.block(56) for _ in range(40)))
    pool = made.block(40, *(made.block(8 * 40) for _ in range(before)), table, table + 8 * 40, table + 8 * 40)
    made.put(OWNER, pool)
    assert made.found(OWNER, 1, engine) == []
    assert [found.what for found in made.found(pool, 3 + before, engine)] == ["std::vector of pointers"]


def test_a_vector_of_vectors(engine: Engine) -> None:
    made = Building()
    words: list[int] = []
    for n in range(12):
        inner = made.block(8 * 5, *range(5))
        words += [inner, inner + 8 * (n % 5 + 1), inner + 40] if n % 4 else [0, 0, 0]
    table = made.block(8 * len(words), *words)
    made.put(OWNER, table, table + 8 * len(words), table + 8 * len(words))
    found = find_only(made, engine, 3)
    assert (found.what, found.length, found.unit) == ("std::vector of vectors", 12, "vectors")
