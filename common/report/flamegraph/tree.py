"""Build a tree from the stacks of a profile. Stacks with the same outer frames share the nodes of
these frames."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from findleaks.report.profile import Profile

Label = tuple[str, str]
"""Name and module of a function. All frames of a function are one node, even if their addresses
differ."""


class Tree(NamedTuple):
    """Nodes in preorder. Children are sorted by total value, the largest first. Node 0 is the root,
    without a label (0), at depth 0.
    `own`: for each measure, the value of each node itself, without its children. A profile that
    compares two snapshots has two such columns for each measure (before, after). `left_out`: number
    of nodes that were too small; their values are added to their parents."""

    labels: Sequence[Label]
    label: array[int]
    depth: array[int]
    own: Sequence[array[int]]
    left_out: int


def build_tree(profile: Profile, most: int) -> Tree:
    """Build the tree. It has at most about `most` nodes: those with the largest values of the
    profile's main measure. Parents are never smaller than their children."""
    grown = _Growing(profile)
    rank = grown.ranks(profile)
    least = _least(rank, most)
    return _preorder(grown, rank, least)


class _Growing:
    """The tree while it is built. Nodes are numbered in the order of creation, so parents come
    before children."""

    def __init__(self, profile: Profile) -> None:
        self.labels: dict[Label, int] = {("", ""): 0}
        self.label, self.parent = array("I", [0]), array("I", [0])
        columns = len(profile.measures) * (1 + profile.compared)
        self.own: list[list[int]] = [[0] for _ in range(columns)]
        children: dict[int, int] = {}  # node and label -> node
        known: dict[int, int] = {}  # id of a frame, which many stacks share -> label
        for sample in profile.samples:
            node = 0
            for frame in sample.stack:
                label = known.get(id(frame), 0)
                if not label:
                    label = known[id(frame)] = self.labels.setdefault((frame.name, frame.module), len(self.labels))
                child = children.get(node << 32 | label)
                if child is None:
                    child = children[node << 32 | label] = len(self.label)
                    self.label.append(label)
                    self.parent.append(node)
                    for column in self.own:
                        column.append(0)
                node = child
            values: Iterable[int] = sample.values
            if profile.compared:
                values = [value for pair in zip(sample.before, sample.values) for value in pair]
            for column, value in zip(self.own, values):
                column[node] += value

    def ranks(self, profile: Profile) -> list[int]:
        """Return the main measure of each node including its descendants. If two snapshots are
        compared, it is the larger value."""
        if profile.compared:
            at = 2 * profile.main
            rank = list(map(max, self.own[at], self.own[at + 1]))
        else:
            rank = list(self.own[profile.main])
        for node in range(len(rank) - 1, 0, -1):
            rank[self.parent[node]] += rank[node]
        return rank


def _least(rank: Sequence[int], most: int) -> int:
    """Return the smallest rank of the nodes that are included."""
    return 0 if len(rank) <= most else sorted(rank, reverse=True)[most] + 1


def _preorder(grown: _Growing, rank: Sequence[int], least: int) -> Tree:
    below: dict[int, list[int]] = {}
    left_out = 0
    for node in range(len(rank) - 1, 0, -1):
        parent = grown.parent[node]
        if rank[node] >= least:
            below.setdefault(parent, []).append(node)
        else:
            left_out += 1
            for column in grown.own:
                column[parent] += column[node]
    label, depth = array("I"), array("I")
    own = [array("Q") for _ in grown.own]
    waiting = [(0, 0)]
    while waiting:
        node, level = waiting.pop()
        label.append(grown.label[node])
        depth.append(level)
        for made, values in zip(own, grown.own):
            made.append(min(values[node], (1 << 64) - 1))
        # The node that was pushed last is popped first. Nodes with equal values are sorted by name,
        # so that each run gives the same result.
        children = below.get(node, [])
        waiting += sorted(((child, level + 1) for child in children), key=lambda one: (rank[one[0]], -one[0]))
    return Tree(list(grown.labels), label, depth, own, left_out)
