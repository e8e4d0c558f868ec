"""Recognise containers by their structure alone, without symbols or debug information.

`recognise.py` finds which words of an owner (a block, a global variable) are the head of a tree,
list, hash table or vector. Each container is walked completely. Therefore its length is exact, and
damage is reported with its address.

A *place* is the address that a word contains: usually the start of a block; in intrusive lists, the
address of a link inside a node."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Optional

from findleaks.target.base import Range
from findleaks.value_classes import dataclass, field

LEAST = 3  # fewest nodes of a list or table: two blocks may point to each other by chance


@dataclass
class Container:
    """A recognised container: its head in the owner, its nodes, and its tables."""

    what: str  # kind, as rows show it ("std::map or set")
    start: int  # [start, end): the words of the owner that form its head
    end: int
    length: int  # number of elements found by walking
    unit: str = "nodes"  # name of the elements, in the plural
    recorded: Optional[int] = None  # number of elements that the container's own header states
    # Addresses of the nodes.
    nodes: array[int] = field(default_factory=lambda: array("Q"), repr=False)
    tables: Sequence[int] = ()  # other blocks of the container: buckets, the array of a vector
    bytes: int = 0  # for a vector: bytes of the elements
    heads: int = 0  # for a hash table: number of chains
    link: int = 0  # for a hash table: offset in a node of the pointer to the next node
    problem: str = ""  # the damage, with its address; "" if there is none
    words: list[Range] = field(default_factory=list)
    """Other words of the owner that point to its nodes, such as the tail of a list."""

    @property
    def spans(self) -> list[Range]:
        """All words of the owner that belong to the container."""
        return sorted([Range(self.start, self.end), *self.words])
