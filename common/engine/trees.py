"""The contract of walking search trees whose nodes point to their parents, and how what is wrong with one is said."""

from __future__ import annotations

from array import array
from typing import NamedTuple, Protocol

# What is wrong; common/kernel/trees.c has the same numbers.
SOUND, UNREADABLE, WRONG_PARENT, TWICE, BOTH_RED, COLOUR, TOO_MANY = range(7)


class TreeLayout(NamedTuple):
    """Of a node, in words: which are its left and right children, its parent, and its colour (0: red, 1: black, in the bits of the mask);
    how many are read."""

    left: int
    right: int
    parent: int
    colour: int
    words: int
    colour_mask: int


class TreeWalk(Protocol):
    """A walk from the root, level by level, left before right. A node counts only where it points back to the one that led to it: so no
    damage makes this run in circles, for a node has one parent, and is met once."""

    def step(self, budget: int) -> bool:
        """Look at about `budget` nodes; True when it is done."""
        ...

    def result(self) -> tuple[array[int], str]:
        """The nodes' addresses, and "" or what is wrong with the first bad one."""
        ...


def tree_problem(code: int, node: int, other: int) -> str:
    """What is wrong, as users read it; "" for SOUND."""
    said = {
        UNREADABLE: f"node {node:#x} cannot be read",
        WRONG_PARENT: f"node {node:#x} gives {other:#x} as its parent, which does not lead to it",
        TWICE: f"node {node:#x} has {other:#x} as both children",
        BOTH_RED: f"node {node:#x} and its parent are both red",
        COLOUR: f"node {node:#x} has colour {other:#x}",
        TOO_MANY: f"more than {other:,} nodes",
    }
    return said.get(code, "")
