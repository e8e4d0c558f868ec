"""The nodes of APR, which are the memory of pools and of bucket allocators.

Source: memory/unix/apr_pools.c (struct apr_allocator_t) and include/apr_allocator.h (apr_memnode_t)
of APR 1.5 to 1.7, for 64-bit programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.value_classes import NamedTuple

NODE = 40  # bytes of apr_memnode_t: next, ref, index, free_index, first_avail, endp
PAGE_SHIFT = 12  # a node has (index + 1) << 12 bytes
MOST_NODES = 1 << 22
_FREE_LISTS, _FREE_AT = 20, 40  # lists of free nodes in apr_allocator_t, and their offset
_LARGEST = 1 << 40  # most bytes of a node


class Node(NamedTuple):
    """A node [start, end), of which the part before `free` is used."""

    start: int
    free: int
    end: int


def read_node(memory: Memory, at: int) -> tuple[Optional[Node], int]:
    """Return the node at an address, and the address of the next one; (None, 0) if there is no
    node."""
    found = memory.members(at, "PPIIPP")
    if found is None:
        return None, 0
    following, _, index, _, free, end = found
    if end - at != (index + 1) << PAGE_SHIFT or end - at > _LARGEST or not at + NODE <= free <= end:
        return None, 0
    return Node(at, free, end), following


def list_free_nodes(memory: Memory, allocator: int, seen: set[int]) -> Iterator[Node]:
    """Yield the free nodes of an allocator, which can be used again. A list ends at a node that is
    in `seen`, to which the nodes are added."""
    for head in memory.words(allocator + _FREE_AT, _FREE_LISTS) or ():
        at = head
        while at and at not in seen and len(seen) < MOST_NODES:
            seen.add(at)
            node, at = read_node(memory, at)
            if node is None:
                break
            yield node._replace(free=node.start)
