"""Walking linked structures along links at given offsets: hash chains, binary trees."""

from __future__ import annotations

from array import array
from typing import Protocol

RUN = 100_000  # nodes of a level followed one link at a time, as in common/native/links.c


class LinkWalk(Protocol):
    """A walk from some heads, level by level; in each run of a level the first link of all nodes,
    then the second. It ends early at a node met before or unreadable, or one node or level too
    many: intact structures have none of these."""

    def step(self, budget: int) -> bool:
        """Follow about `budget` links; True when done."""
        ...

    def result(self) -> tuple[array[int], bool]:
        """The nodes' addresses as discovered, heads first, each once; whether all is intact."""
        ...
