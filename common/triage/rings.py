"""Choose the head of a cycle of leaked blocks.

The engine chooses the block with the lowest address, which differs in each run. The object that a
program considers as the whole (a document, a connection, a loop) is the block that the parts refer
to."""

from __future__ import annotations

from collections import Counter

from findleaks.engine.contract import Blocks, Graph

MOST = 1_000  # maximum number of blocks of one cycle that are examined


def head(graph: Graph, blocks: Blocks, leak_head: int) -> int:
    """Return the head of the cycle that contains the block with the index `leak_head`. It is the
    block that most other blocks of the cycle refer to. If several blocks are equal in this, the
    choice is by: rarest size in the cycle, most referring words, lowest index."""
    ring = _members(graph, leak_head)
    sizes = Counter(blocks.size(index) for index in ring)
    referring, words = Counter[int](), Counter[int]()
    for index in ring:
        to = [other for other, _ in graph.references(index) if other != index]
        referring.update(set(to))
        words.update(to)
    return min(ring, key=lambda one: (-referring[one], sizes[blocks.size(one)], -words[one], -blocks.size(one), one))


def _members(graph: Graph, leak_head: int) -> set[int]:
    """Return the blocks of the cycle: those that are reachable from the leak head and from which
    the leak head is reachable, including the leak head itself."""
    referrers: dict[int, list[int]] = {leak_head: []}
    left = [leak_head]
    while left and len(referrers) < MOST:
        index = left.pop(0)
        for other, _ in graph.references(index):
            if other != leak_head and graph.leak_head(other) != leak_head:
                continue
            if other not in referrers:
                referrers[other] = []
                left.append(other)
            referrers[other].append(index)
    ring, left = {leak_head}, [leak_head]
    while left:
        for other in referrers[left.pop()]:
            if other not in ring:
                ring.add(other)
                left.append(other)
    return ring
