"""Read the tree of APR's pools, and their nodes, which are their memory.

Source: memory/unix/apr_pools.c (struct apr_pool_t, apr_allocator_t) of APR 1.5 to 1.7, for 64-bit
programs without APR_POOL_DEBUG."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Optional

from findleaks.allocators.apr_nodes import MOST_NODES, NODE, PAGE_SHIFT, Node, list_free_nodes, read_node
from findleaks.allocators.bulk import read_records
from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.target.base import Range, Target
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import subtract
from findleaks.value_classes import NamedTuple

WORDS = 14  # words of a pool that are read
PARENT, CHILD, SIBLING, CLEANUPS, ALLOCATOR, TAG, ACTIVE, SELF, FIRST = 0, 1, 2, 4, 6, 10, 11, 12, 13
CLEANUP = 2  # words before the function of a cleanup: next, data
OWNER = 4  # words before `owner` (the pool that destroys the allocator) in apr_allocator_t
ALLOCATOR_BYTES = (200, 224)  # least and greatest size of a block of malloc with an apr_allocator_t
ROOT_TAG = "apr_global_pool"
MOST_POOLS = 1 << 20
LEAST_NODE, LARGEST_BLOCK = 1 << 13, 1 << 20  # bytes of blocks of malloc that may be first nodes
MOST_PAGES = 1 << 18  # pages of anonymous mappings that may be first nodes
LONGEST = 64  # most bytes of a tag that are read
LOOK = 4096  # possible first nodes between two checks for Ctrl-C


class Pool(NamedTuple):
    """A pool with its nodes.

    - `tag` is its name, or "".
    - `parent` is the address of the pool above, or 0.
    - `cleanup` is the function that is called first when it is destroyed, or 0.
    - `allocator` is the address of the allocator of its nodes."""

    address: int
    tag: str
    parent: int
    cleanup: int
    allocator: int
    nodes: Sequence[Node]

    @property
    def bytes(self) -> int:
        """Bytes of its nodes."""
        return sum(node.end - node.start for node in self.nodes)


def find_root(target: Target, image: Image) -> int:
    """Return the address of the outermost pool, or 0. A static variable of libapr refers to it."""
    memory = Memory(target)
    for start, end in image.data:
        for _, words in memory.scan(start, end):
            for word in words:
                if word % 8 == 0 and word and _tag(memory, word) == ROOT_TAG:
                    return word
    return 0


def find_unmanaged(memory: Memory, engine: Engine, blocks: Blocks) -> Iterator[int]:
    """Yield the pools that have no parent and own their allocator (apr_pool_create_unmanaged). No
    other pool refers to them. The allocator is a block of malloc."""
    indices = blocks.of_sizes(*ALLOCATOR_BYTES, MOST_POOLS)
    allocators = array("Q", map(blocks.address, indices))
    records, _ = read_records(memory.target, engine, allocators, (OWNER + 1) * memory.size)
    owners = engine.arch.words(records)[OWNER :: OWNER + 1]
    for allocator, owner in zip(allocators, owners):
        words = memory.words(owner, WORDS) if owner and owner % 8 == 0 else None
        if words is not None and words[SELF] + NODE == owner and words[ACTIVE] and (words[PARENT], words[ALLOCATOR]) == (0, allocator):
            yield owner


def find_by_nodes(memory: Memory, engine: Engine, blocks: Blocks, heaps: Sequence[Range]) -> Iterator[int]:
    """Yield the pools without a parent whose allocator belongs to no pool
    (apr_pool_create_unmanaged_ex), ascending. Their first nodes are large blocks of malloc, or
    begin with a page of an anonymous mapping; `heaps` are the mappings with blocks. A pool that was
    destroyed is in its first node, too, but this node is in the free lists of the allocator. Raises
    Interrupted."""
    indices = blocks.of_sizes(LEAST_NODE, LARGEST_BLOCK, MOST_POOLS)
    regions = [Range(one.start, one.end) for one in memory.target.regions() if one.readable and one.writable and not one.name]
    pages = (page for start, end in subtract(regions, heaps) for page in range(start, end, 1 << PAGE_SHIFT))
    places = array("Q", sorted({*map(blocks.address, indices), *islice(pages, MOST_PAGES)}))
    first = NODE // memory.size
    records, _ = read_records(memory.target, engine, places, NODE + WORDS * memory.size)
    words = engine.arch.words(records)
    reader, free, known = PoolReader(memory), set[int](), dict[int, bool]()
    for number, place in enumerate(interruptible(memory.target, places, LOOK)):
        at = number * (first + WORDS) + first
        if words[at + SELF] != place or words[at + PARENT] or not words[at + ACTIVE]:
            continue
        # The next node of the ring refers back. In memory that was freed and is used again, the
        # link is overwritten first.
        if memory.word(words[at - first] + memory.size) != place:
            continue
        allocator = words[at + ALLOCATOR]
        if allocator not in known:
            index = blocks.find(allocator)
            known[allocator] = index >= 0 and blocks.address(index) == allocator and blocks.state(index) == State.IN_USE
            if known[allocator]:
                free.update(node.start for node in reader.free_nodes(allocator))
        if known[allocator] and place not in free:
            yield place + NODE


def _tag(memory: Memory, pool: int) -> Optional[str]:
    """Return the tag of the pool at an address; None if there is no pool. A pool is at the start of
    its first node, after the node's header."""
    words = memory.words(pool, WORDS)
    if words is None or words[SELF] + NODE != pool or not words[ACTIVE]:
        return None
    return _text(memory, words[TAG])


def _text(memory: Memory, address: int) -> str:
    return memory.c_string(address, LONGEST).decode("utf-8", "replace")


class PoolReader:
    """Reads pools. `problems` lists damage as (address, message).

    A node belongs to one pool, or to one list of free nodes, and a pool to one tree. A walk that
    meets a node or a pool again ends, so that the time is proportional to their number, even if
    links are damaged."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.problems: list[tuple[int, str]] = []
        self._seen = set[int]()  # nodes that were met
        self._pools = set[int]()

    def read(self, root: int) -> Iterator[Pool]:
        """Yield the pool at `root` and all below it, each before its children. Pools that were read
        before are left out."""
        memory, seen = self._memory, self._pools
        todo = [(root, 0)]
        while todo and len(seen) < MOST_POOLS:
            address, parent = todo.pop()
            words = memory.words(address, WORDS)
            if address in seen or words is None or words[PARENT] != parent or words[SELF] + NODE != address:
                self.problems.append((address, f"APR's tree of pools leads to {address:#x}, which is not a pool"))
                continue
            seen.add(address)
            cleanup = (memory.word(words[CLEANUPS] + CLEANUP * memory.size) or 0) if words[CLEANUPS] else 0
            yield Pool(address, _text(memory, words[TAG]), parent, cleanup, words[ALLOCATOR], list(self._ring(words[ACTIVE])))
            todo += [(words[SIBLING], parent)] if words[SIBLING] else []
            todo += [(words[CHILD], address)] if words[CHILD] else []

    def free_nodes(self, allocator: int) -> Iterator[Node]:
        """Yield the free nodes of an allocator. Pools can use them."""
        return list_free_nodes(self._memory, allocator, self._seen)

    def _ring(self, first: int) -> Iterator[Node]:
        """Yield the nodes of a pool, which are linked in a ring."""
        at, before = first, len(self._seen)
        while at not in self._seen and len(self._seen) < MOST_NODES:
            self._seen.add(at)
            node, following = read_node(self._memory, at)
            if node is None:
                self.problems.append((at, f"APR's ring of nodes leads to {at:#x}, which is not a node"))
                return
            yield node
            at = following
        if at != first or len(self._seen) == before:
            self.problems.append((at, f"APR's ring of nodes leads to {at:#x}, a node of another ring"))
