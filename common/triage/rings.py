"""Cycles of lost blocks: which of a cycle's blocks is its head.

The engine's choice is the lowest address, which is another block in every run. What a program calls
the whole (a document, a connection, a loop) is what the parts refer back to.
"""

from __future__ import annotations

from collections import Counter

from findleaks.engine.contract import Blocks, Graph

MOST = 1_000  # blocks that are looked at for one cycle


def head(graph: Graph, blocks: Blocks, leader: int) -> int:
    """The head of the cycle that the block of index `leader` leads: the block that most of its
    blocks refer to; of several one whose size is rare in it, of these the one that most
    words refer to, and of blocks alike the first."""
    ring = _members(graph, leader)
    sizes = Counter(blocks.size(index) for index in ring)
    referring, words = Counter[int](), Counter[int]()
    for index in ring:
        to = [other for other, _ in graph.references(index) if other != index]
        referring.update(set(to))
        words.update(to)
    return min(ring, key=lambda one: (-referring[one], sizes[blocks.size(one)], -words[one], -blocks.size(one), one))


def _members(graph: Graph, leader: int) -> set[int]:
    """The blocks that the leader leads to and that lead back to it, itself included."""
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
