"""Find the bucket allocators of APR-util, and their nodes.

Source: buckets/apr_buckets_alloc.c (struct apr_bucket_alloc_t, node_header_t) of APR-util 1.5 and
1.6, memory/unix/apr_pools.c and include/apr_allocator.h of APR 1.5 to 1.7, 64-bit.

A node (apr_memnode_t) begins with a header. After the header, the first node of a bucket allocator
has the struct apr_bucket_alloc_t. Each block has a header with its size, and the addresses of the
bucket allocator and of the node. A large block has a node of its own, to which nothing else
refers, so all nodes are found by the header of their first block."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice

from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.target.base import Target
from findleaks.value_classes import NamedTuple

NODE, LIST, HEADER = 40, 32, 32
"""Bytes of a node's header, of a bucket allocator, and of a block's header."""
_WORDS = (NODE + LIST + HEADER) // 8  # words at the start of a node that are read
_FREE_LISTS, _FREE_AT = 20, 40  # lists of free nodes in apr_allocator_t, and their offset
_CLEANUPS = 4  # words before `cleanups` in apr_pool_t
_PAGE = 4096
_LARGEST = 1 << 32  # most bytes of a node
_MOST_BLOCKS, _MOST_PAGES = 1 << 20, 1 << 18
_MOST_NODES, _MOST_CLEANUPS = 1 << 20, 1 << 16


class Node(NamedTuple):
    """A node [start, end) with `blocks` blocks of `size` bytes with their headers, from `first`."""

    start: int
    end: int
    first: int
    size: int
    blocks: int


class BucketList(NamedTuple):
    """A bucket allocator at `address`, which the pool at `pool` destroys. `free`: the header of the
    first free block."""

    address: int
    pool: int
    free: int
    nodes: Sequence[Node]


def find_lists(target: Target, engine: Engine, blocks: Blocks) -> list[BucketList]:
    """Return the bucket allocators of all pools, by address. Their nodes are mappings, or blocks of
    malloc of at least two pages."""
    memory = Memory(target)
    large = (index for index in blocks.of_sizes(2 * _PAGE - 64, _LARGEST, _MOST_BLOCKS) if blocks.state(index) == State.IN_USE)
    places = array("Q", sorted({*map(blocks.address, large), *islice(_list_pages(target), _MOST_PAGES)}))
    records, _ = read_records(target, engine, places, 8 * _WORDS)
    words = target.arch.words(records)
    found: dict[int, list[Node]] = {}
    free: dict[int, set[int]] = {}
    owners: dict[int, tuple[int, int]] = {}
    possible: list[tuple[int, int, Node]] = []
    for number, place in enumerate(places):
        row = words[_WORDS * number : _WORDS * (number + 1)]
        end, here = row[4], NODE // 8
        if end <= place or end - place > _LARGEST or (end - place) % _PAGE or not place + NODE <= row[3] <= end:
            continue
        inner = here + LIST // 8
        if row[inner + 1] == place + NODE and row[inner + 2] == place and _is_registered(memory, row[here], place + NODE):
            owners[place + NODE] = (row[here], row[here + 2])
            free[place + NODE] = set(_list_free(memory, row[here + 1]))
            possible.append((place, place + NODE, _node(place, row, inner)))
        elif row[here + 2] == place:
            possible.append((place, row[here + 1], _node(place, row, here)))
    for place, owner, node in possible:
        if owner in owners and place not in free[owner] and node.blocks:
            found.setdefault(owner, []).append(node)
    return [BucketList(owner, *owners[owner], nodes) for owner, nodes in sorted(found.items())]


def _node(place: int, row: Sequence[int], at: int) -> Node:
    """Return a node whose first block has its header at a word of `row`. A large block fills its
    node, whose header does not count it as used. Its size is not rounded up."""
    first, size, used, end = place + 8 * at, (row[at] + 7) & -8, row[3], row[4]
    if not HEADER < size <= end - first:
        return Node(place, end, first, 0, 0)
    return Node(place, end, first, size, (used - first) // size if used > first else 1)


def _list_pages(target: Target) -> Iterator[int]:
    """Yield the pages of anonymous mappings."""
    for region in target.regions():
        if region.readable and region.writable and not region.name:
            yield from range(-(-region.start // _PAGE) * _PAGE, region.end - _PAGE, _PAGE)


def _is_registered(memory: Memory, pool: int, address: int) -> bool:
    """Whether a pool has a cleanup for a bucket allocator. A bucket allocator that was destroyed
    stays in memory, but has no cleanup."""
    at, seen = memory.word(pool + 8 * _CLEANUPS) if pool % 8 == 0 else None, 0
    while at and seen < _MOST_CLEANUPS:
        words = memory.words(at, 2)
        if words is None or words[1] == address:
            return words is not None
        at, seen = words[0], seen + 1
    return False


def _list_free(memory: Memory, allocator: int) -> Iterator[int]:
    """Yield the free nodes of an allocator of APR."""
    seen: set[int] = set()
    for head in memory.words(allocator + _FREE_AT, _FREE_LISTS) or ():
        at = head
        while at and at not in seen and len(seen) < _MOST_NODES:
            seen.add(at)
            yield at
            at = memory.word(at) or 0
