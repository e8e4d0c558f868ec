"""Dominators of heaps in which most blocks have one referrer: trees, with a few more references between them."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

import graphs
import pytest
from held import Oracle, agrees, compute_dominators, engines, everything, make_graph, select_by_priority

from findleaks.engine.dominators import NO_ROOT, root_node

ROOTS = 4


def make_forest(rng: random.Random, count: int) -> list[list[int]]:
    """Return trees, wide or deep, whose nodes are in any order of addresses."""
    order = list(range(count))
    rng.shuffle(order)
    near = rng.choice((2, 5, count))
    references: list[list[int]] = [[] for _ in range(count)]
    for at in range(1, count):
        if rng.randrange(12):
            references[order[rng.randrange(max(0, at - near), at)]].append(order[at])
    return references


def add_references(rng: random.Random, references: list[list[int]]) -> None:
    """Add a few references: to any block, to a parent, twice to one block, to the block itself."""
    count = len(references)
    parents = {child: parent for parent, mine in enumerate(references) for child in mine}
    for _ in range(rng.randrange(4)):
        references[rng.randrange(count)].append(rng.randrange(count))
    if rng.randrange(2):
        for child in rng.sample(sorted(parents), len(parents) // rng.choice((1, 3))):
            references[child].insert(rng.randrange(len(references[child]) + 1), parents[child])
    for index in rng.sample(range(count), 3):
        references[index] += [*references[index][:1], index]


def select_references(
    references: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    priorities: Sequence[int],
    parts: array[int],
    container_owners: Sequence[int],
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the references that count, of blocks and of roots, computed as the contract defines it, step by step."""

    def counts(source: int, target: int) -> bool:
        part = parts[target]
        return target != source and (part == NO_ROOT or container_owners[part] == source or (source >= 0 and parts[source] == part))

    left = [[t for t in mine if counts(index, t)] for index, mine in enumerate(references)]
    kept = [[t for t in mine if counts(root_node(root), t)] for root, mine in enumerate(targets)]
    return select_by_priority(left, kept, priorities)


@pytest.mark.parametrize("seed", range(graphs.share(150)))
def test_collapsed_trees_against_the_oracle(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randrange(20, 70)
    references = make_forest(rng, count)
    add_references(rng, references)
    targets = [sorted(rng.sample(range(count), rng.randrange(1, 4))) for _ in range(ROOTS)]
    priorities = ((), (2,), (1, 3))[seed % 3]
    container_owners = [rng.choice([*range(count), root_node(1)]) for _ in range(2)]
    parts = array("I", [rng.choice([*[NO_ROOT] * 12, 0, 1]) if seed % 4 == 0 else NO_ROOT for _ in range(count)])
    left, kept = select_references(references, targets, priorities, parts, container_owners)
    oracle = Oracle([max(8 * len(mine), 8) for mine in references], left, kept)
    answers = []
    for engine in engines():
        dominators = make_graph(engine, references).dominators(ROOTS, priorities=priorities)
        if seed % 4 == 0:
            dominators.set_owners(parts, container_owners)
        for root, mine in enumerate(targets):
            dominators.refer(root, mine)
        agrees(compute_dominators(dominators, (1, 7, 1 << 20)[seed % 3]), oracle)
        answers.append(everything(dominators, count))
        for node in [index for index in [*range(count), root_node(0)] if oracle.retained(index).blocks > 2][:6]:
            mine = left[node] if node >= 0 else kept[0]
            below = dominators.within(node, 3)
            for field in range(3):
                below.refer(field, mine[field::3])
            held = oracle.held[node] - {node}
            inner = [[t for t in others if t in held] if index in held else [] for index, others in enumerate(left)]
            agrees(
                compute_dominators(below, 5), Oracle(oracle.sizes, inner, [[t for t in mine[field::3] if t in held] for field in range(3)])
            )
            answers[-1][f"fields of {node}"] = everything(below, count)
    assert answers[0] == answers[1]
