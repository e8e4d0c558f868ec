"""The contract of walking whatever hangs from some nodes by links at given offsets: chains of a hash table, binary trees."""

from __future__ import annotations

from array import array
from typing import Protocol

RUN = 100_000
"""Nodes of a level of which one link after the other is followed; common/kernel/links.c has the same number."""


class LinkWalk(Protocol):
    """A walk from some heads, level by level; of each run of a level the first link of all its nodes, then the second. It ends at a node
    that was met before, or that cannot be read, and with one node, or one level, too many: what is sound has none of these."""

    def step(self, budget: int) -> bool:
        """Look at about `budget` links; True when it is done."""
        ...

    def result(self) -> tuple[array[int], bool]:
        """The nodes' addresses as they were met, heads first, none twice; and whether all is sound."""
        ...
