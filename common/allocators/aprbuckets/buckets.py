"""Find the bucket allocators of APR-util, and their nodes.

Source: buckets/apr_buckets_alloc.c (struct apr_bucket_alloc_t, node_header_t) of APR-util 1.5 and
1.6, memory/unix/apr_pools.c (struct apr_pool_t) of APR 1.5 to 1.7, 64-bit.

A node (apr_memnode_t) begins with a header. After the header, the first node of a bucket allocator
has the struct apr_bucket_alloc_t. It refers to the newest node with small blocks, from which a list
of such nodes leads to the first one. Each block has a header with its size, and the addresses of
the bucket allocator and of the node.

A large block has a node of its own, to which nothing else refers, so these nodes are found by the
header of the block. Such a header may be stale: a pool may have taken the node since. The header of
the node then counts memory as used, which it does not do for a large block."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice

from findleaks.allocators.apr_nodes import MOST_NODES, NODE, PAGE_SHIFT, list_free_nodes
from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.target.base import Target
from findleaks.value_classes import NamedTuple

LIST, HEADER = 32, 32
"""Bytes of a bucket allocator, and of a block's header."""
_WORDS = (NODE + LIST + HEADER) // 8  # words at the start of a node that are read
_HERE, _INNER = NODE // 8, (NODE + LIST) // 8
"""Index of the first block in these words. In the first node, the block follows the bucket
allocator."""
_CLEANUPS = 4  # words before `cleanups` in apr_pool_t
_PAGE = 1 << PAGE_SHIFT
_LARGEST = 1 << 32  # most bytes of a node
_MOST_BLOCKS, _MOST_PAGES = 1 << 20, 1 << 18
_MOST_CLEANUPS = 1 << 16


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
    possible: list[tuple[int, Node]] = []
    for number, place in enumerate(places):
        row = words[_WORDS * number : _WORDS * (number + 1)]
        address = place + NODE
        if not _is_node(place, row):
            continue
        if row[_INNER + 1] == address and row[_INNER + 2] == place and _is_registered(memory, row[_HERE], address):
            owners[address] = (row[_HERE], row[_HERE + 2])
            free[address] = {node.start for node in list_free_nodes(memory, row[_HERE + 1], set())}
            found[address] = list(_list_small(memory, address, row[_HERE + 3]))
        elif row[_HERE + 2] == place and row[3] == address and HEADER < row[_HERE] <= row[4] - address:
            # The header of the block does not round the size up.
            possible.append((row[_HERE + 1], Node(place, row[4], address, (row[_HERE] + 7) & -8, 1)))
    for owner, node in possible:
        if owner in owners and node.start not in free[owner]:
            found[owner].append(node)
    return [BucketList(owner, *owners[owner], sorted(nodes)) for owner, nodes in sorted(found.items()) if nodes]


def _is_node(place: int, row: Sequence[int]) -> bool:
    """Whether the words at an address are possible for the header of a node."""
    end = row[4]
    return place < end <= place + _LARGEST and (end - place) % _PAGE == 0 and place + NODE <= row[3] <= end


def _list_small(memory: Memory, owner: int, newest: int) -> Iterator[Node]:
    """Yield the nodes with small blocks of the bucket allocator at `owner`."""
    at, seen = newest, set[int]()
    while at and at not in seen and len(seen) < MOST_NODES:
        seen.add(at)
        row = memory.words(at, _WORDS)
        if row is None or not _is_node(at, row):
            return
        is_first = at + NODE == owner
        here = _INNER if is_first else _HERE
        first, size, used = at + 8 * here, row[here], row[3]
        if used > first and row[here + 1] == owner and row[here + 2] == at and size > HEADER and (used - first) % size == 0:
            yield Node(at, row[4], first, size, (used - first) // size)
        at = 0 if is_first else row[0]


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
