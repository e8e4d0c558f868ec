"""Containers recognised by their structure alone, without symbols and debug information.

`found_in` finds which words of an owner (a block, a global variable) are the head of a tree, list,
hash table or vector. It walks each container whole: lengths are exact, damage has an address.

A *place* is what a word points to: mostly a block's start; in intrusive lists, a link in a node."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Optional

from findleaks.target.base import Range

LEAST = 3  # fewest nodes of a list or table: two blocks may point to each other by chance


@dataclass
class Container:
    """A container."""

    what: str  # kind as rows show it ("std::map or set")
    start: int  # [start, end): the owner's words that are its head
    end: int
    length: int  # elements as walked
    unit: str = "nodes"  # an element, in the plural
    recorded: Optional[int] = None  # number of elements by its own header
    nodes: array[int] = field(default_factory=lambda: array("Q"), repr=False)  # addresses
    tables: Sequence[int] = ()  # its blocks beside nodes: buckets, a vector's array
    bytes: int = 0  # of a vector's elements
    heads: int = 0  # of a hash table: chains
    link: int = 0  # of a hash table: offset of the next node's pointer in a node
    problem: str = ""  # "" or what is damaged, with the address
    words: list[Range] = field(default_factory=list)
    """Other words of the owner that lead into it, such as a list's tail."""

    @property
    def spans(self) -> list[Range]:
        """All words of the owner that belong to it."""
        return sorted([Range(self.start, self.end), *self.words])
