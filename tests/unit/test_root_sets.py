"""Both engines find the same roots that reach shared memory, in random heaps with priorities and containers."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Sequence

import graphs
import pytest
from held import compute_dominators, engines, make_graph

from findleaks.engine.dominators import NO_ROOT, SET, SHARED, RootSet, root_node

ROOTS = 7


def reach(references: Sequence[Sequence[int]], starts: Sequence[int]) -> set[int]:
    found, waiting = set(starts), list(starts)
    while waiting:
        new = set(references[waiting.pop()]) - found
        found |= new
        waiting += new
    return found


@pytest.mark.parametrize("seed", range(graphs.share(120)))
def test_sets_against_reachability(seed: int) -> None:
    """The sets are those of a search from each root, with two priorities. Blocks belong to the first priority that reaches them."""
    rng = random.Random(seed)
    count = rng.randrange(1, (12, 60)[seed % 2])
    references = [rng.choices(range(count), k=rng.choice((0, 1, 1, 2, 3))) for _ in range(count)]
    references = [[target for target in mine if target != index] for index, mine in enumerate(references)]
    targets = [rng.choices(range(count), k=rng.randrange(3)) for _ in range(ROOTS)]
    later = rng.randrange(ROOTS)
    owner = rng.randrange(count)
    parts = array("I", [0 if seed % 4 == 0 and rng.randrange(5) == 0 else NO_ROOT for _ in range(count)])
    kept = [[t for t in mine if parts[t] == NO_ROOT or owner == index or parts[index] == 0] for index, mine in enumerate(references)]
    starts = [[t for t in mine if parts[t] == NO_ROOT] for mine in targets]
    reached = [reach(kept, mine) for mine in starts]
    earlier = set().union(*reached[:later])
    answers = []
    for engine in engines():
        graph = make_graph(engine, references, [rng.choice((0, 8, 24)) for _ in range(count)])
        tree = graph.dominators(ROOTS, priorities=[later])
        tree.set_owners(parts, [owner])
        for root, mine in enumerate(targets):
            tree.refer(root, mine)
        compute_dominators(tree, 1 << 20)
        roots = array("I", [root for root, mine in enumerate(targets) for _ in mine])
        blocks = array("I", [block for mine in targets for block in mine])
        for first, end in ((0, later), (later, ROOTS)):
            sizes: Counter[tuple[int, ...]] = Counter()
            for index in range(count):
                mine = tuple(root for root in range(first, end) if index in reached[root])
                if tree.idom(index) == SHARED and 0 < len(mine) <= SET and not (first and index in earlier):
                    sizes[mine] += tree.sum_retained(index).bytes
            sets = tree.root_sets(first, end, roots, blocks)
            while not sets.compute((1, 5, 1 << 20)[seed % 3]):
                pass
            assert sets.sets() == sorted((RootSet(*one) for one in sizes.items()), key=lambda one: (-one.bytes, one.roots))
            answers.append(sets.sets())
        rng.seed(seed)
    assert len(answers) == 4
    assert all(tree.sum_retained(root_node(root)).bytes >= 0 for root in range(ROOTS))


@pytest.mark.parametrize("engine", engines(), ids=lambda engine: engine.name)
def test_wrong_references(engine: object) -> None:
    graph = make_graph(engine, [[]], [0])  # type: ignore[arg-type]
    tree = graph.dominators(1)
    with pytest.raises(RuntimeError):
        tree.root_sets(0, 1, array("I"), array("I"))
    compute_dominators(tree, 1)
    for roots, blocks in (([0], []), ([1], [0]), ([0], [1])):
        with pytest.raises(ValueError, match="root"):
            tree.root_sets(0, 1, array("I", roots), array("I", blocks))
