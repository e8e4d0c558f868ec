"""Read a computed dominator tree block by block."""

from __future__ import annotations

from array import array

from findleaks.engine.dominators import NO_ROOT, Dominators, root_node
from findleaks.runtimes.base import NO_OBJECT

_STEP = 1 << 18  # blocks whose retained memory is computed at once


def sum_subtrees(tree: Dominators, count: int) -> tuple[array[int], array[int]]:
    """Return the number ("I") and the bytes ("Q") of the blocks that each block retains."""
    counts, retained = array("I"), array("Q")
    for first in range(0, count, _STEP):
        last = min(first + _STEP, count)
        labels = array("I", [NO_ROOT]) * count
        labels[first:last] = array("I", range(last - first))
        totals = tree.by_label(labels, array("I", range(last - first)))
        counts.extend(one.blocks for one in totals)
        retained.extend(one.bytes for one in totals)
    return counts, retained


def find_block_owners(tree: Dominators, found: array[int], counts: array[int]) -> array[int]:
    """Return, for each block, the index ("I") of the nearest block that has an object and dominates
    it, or NO_ROOT if there is none. A block with an object gets its own index. `found` has
    NO_OBJECT for blocks without an object. `counts` is the first result of `sum_subtrees` for
    `tree`, which must have one root."""
    owners, ends = array("I", [NO_ROOT]) * len(found), list[tuple[int, int]]()
    for place, index in enumerate(tree.members(root_node(0), 0, len(found))):
        while ends and ends[-1][0] <= place:
            ends.pop()
        owners[index] = owner = index if found[index] != NO_OBJECT else ends[-1][1] if ends else NO_ROOT
        if counts[index] > 1:
            ends.append((place + counts[index], owner))
    return owners
