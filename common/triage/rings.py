"""Choose the head of a cycle of leaked blocks.

The engine chooses the block with the lowest address, which differs in each run. The object that a
program considers as the whole (a document, a connection, a loop) is the block that the parts refer
to."""

from __future__ import annotations

from collections import Counter

from findleaks.engine.contract import Blocks, Graph

MOST = 1_000  # maximum number of blocks of one cycle that are examined


def head(graph: Graph, blocks: Blocks, leader: int) -> int:
    """Return the head of the cycle that contains the block with the index `leader`. It is the block
    that most other blocks of the cycle refer to. If several blocks are equal in this, the choice is
    by: rarest size in the cycle, most referring words, lowest index."""
    ring = _members(graph, leader)
    sizes = Counter(blocks.size(index) for index in ring)
    referring, words = Counter[int](), Counter[int]()
    for index in ring:
        to = [other for other, _ in graph.references(index) if other != index]
        referring.update(set(to))
        words.update(to)
    return min(ring, key=lambda one: (-referring[one], sizes[blocks.size(one)], -words[one], -blocks.size(one), one))


def _members(graph: Graph, leader: int) -> set[int]:
    """Return the blocks of the cycle: those that are reachable from the leader and from which the
    leader is reachable, including the leader itself."""
    referrers: dict[int, list[int]] = {leader: []}
    left = [leader]
    while left and len(referrers) < MOST:
        index = left.pop(0)
        for other, _ in graph.references(index):
            if other != leader and graph.leader(other) != leader:
                continue
            if other not in referrers:
                referrers[other] = []
                left.append(other)
            referrers[other].append(index)
    ring, left = {leader}, [leader]
    while left:
        for other in referrers[left.pop()]:
            if other not in ring:
                ring.add(other)
                left.append(other)
    return ring
