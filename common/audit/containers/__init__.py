"""Containers recognised by their structure, in any program: without symbols and debug information.

`found_in` examines the words of an owner (a block, a global variable) and finds those that are the
head of a container: a tree, a list, a hash table, a vector. It walks each container whole, so that
lengths are exact. It checks them on the way, and reports damage with its address.

What a word points to is a *place*. Mostly that is the start of a block; links of intrusive
containers point to the link inside the next node.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Optional

from findleaks.target.base import Range

LEAST = 3
"""Fewest nodes of a list or table: two blocks that point to one another are not enough."""


@dataclass
class Container:
    """A container.

    `what`: its kind as rows show it ("std::map or set"). `start`, `end`: the owner's words that are
    its head. `length`: its elements as walked; `recorded`: the number of elements in its own
    header, None where that has none. `nodes`: the addresses of its nodes, if it has any. `tables`:
    blocks that it has beside them (buckets, a vector's array). `unit`: an element, in the plural.
    `problem`: "" or what is damaged, with the address.
    """

    what: str
    start: int
    end: int
    length: int
    unit: str = "nodes"
    recorded: Optional[int] = None
    nodes: array[int] = field(default_factory=lambda: array("Q"), repr=False)
    tables: Sequence[int] = ()
    problem: str = ""
    words: list[Range] = field(default_factory=list)
    """Other words of the owner that lead into it, such as a list's tail."""

    @property
    def spans(self) -> list[Range]:
        """All words of the owner that belong to it."""
        return sorted([Range(self.start, self.end), *self.words])
