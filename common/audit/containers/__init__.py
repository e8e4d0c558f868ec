"""Containers told by their structure, in any program: no symbols, no debug information.

`found_in` looks at the words of an owner (a block, a global variable) and says which of them are the head of a container: a tree, a
list, a hash table, a vector. It walks each one whole, so that lengths are exact, and checks it on the way: what is damaged is said,
with the address.

What a word points to is a *place*: mostly the start of a block, but links of intrusive containers point to where the link stands inside
their nodes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Optional

from findleaks.target.base import Range

LEAST = 3
"""Nodes that make a list or table: two blocks that point to one another are nothing to speak of."""


@dataclass
class Container:
    """One container. `what` is its kind as rows show it ("std::map or set"); its head is the owner's
    words from `start` to `end`. `length` counts its elements as walked; `recorded` is the number of
    elements in its own header, None where that has none. `nodes` are the addresses of its nodes, if
    it has any; `tables` the blocks that it keeps beside them (buckets, a vector's array). `unit` names
    an element, in the plural. `problem` is "" or what is damaged, with the address."""

    what: str
    start: int
    end: int
    length: int
    unit: str = "nodes"
    recorded: Optional[int] = None
    nodes: array[int] = field(default_factory=lambda: array("Q"), repr=False)
    tables: Sequence[int] = ()
    problem: str = ""
    words: list[Range] = field(default_factory=list)  # more of the owner's words that lead into it: a list's tail

    @property
    def spans(self) -> list[Range]:
        """All words of the owner that belong to it."""
        return sorted([Range(self.start, self.end), *self.words])


Recogniser = Callable[..., Optional[Container]]

__all__ = ["LEAST", "Callable", "Container", "Iterator", "Recogniser"]
