"""Walk linked structures along links at given offsets: hash chains, binary trees."""

from __future__ import annotations

from array import array
from typing import Protocol

RUN = 100_000  # nodes of a level whose links are followed together, as in common/native/links.c


class LinkWalk(Protocol):
    """A walk from some heads, level by level. In each run of a level it follows the first link of
    all nodes, then the second link.

    The walk ends early at a node that was visited before or is unreadable, or if there are more
    nodes or levels than the limits. In intact structures none of these happens."""

    def step(self, budget: int) -> bool:
        """Follow about `budget` links. Return True when done."""
        ...

    def result(self) -> tuple[array[int], bool]:
        """Return the addresses of the nodes, and whether all of them are intact. The addresses are
        in the order of discovery, heads first, without repetition."""
        ...
