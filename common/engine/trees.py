"""Walk search trees whose nodes have parent pointers, and describe their problems."""

from __future__ import annotations

from array import array
from typing import Protocol

from findleaks.value_classes import NamedTuple

# as in common/native/trees.c
SOUND, UNREADABLE, WRONG_PARENT, TWICE, BOTH_RED, COLOUR, TOO_MANY = range(7)


class TreeLayout(NamedTuple):
    """Layout of a node, as indices of words: left, right, parent, colour (0 red, 1 black), and the
    number of words to read. The colour is in the first `colour_bytes` bytes of its word."""

    left: int
    right: int
    parent: int
    colour: int
    words: int
    colour_bytes: int


class TreeWalk(Protocol):
    """A walk from the root, level by level, left before right.

    A node counts only if its parent pointer refers to the node from which the walk came. So each
    node is visited once, and damage cannot cause an endless walk."""

    def step(self, budget: int) -> bool:
        """Visit about `budget` nodes. Return True when done."""
        ...

    def result(self) -> tuple[array[int], str]:
        """Return the nodes' addresses, and "" or what is wrong with the first bad node."""
        ...


def tree_problem(code: int, node: int, other: int) -> str:
    """Return the message about a problem; "" for SOUND."""
    said = {
        UNREADABLE: f"node {node:#x} cannot be read",
        WRONG_PARENT: f"node {node:#x} gives {other:#x} as its parent, which does not refer to it",
        TWICE: f"node {node:#x} has {other:#x} as both children",
        BOTH_RED: f"node {node:#x} and its parent are both red",
        COLOUR: f"node {node:#x} has colour {other:#x}",
        TOO_MANY: f"more than {other:,} nodes",
    }
    return said.get(code, "")
