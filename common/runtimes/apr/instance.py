"""The pools of APR, as a runtime whose types are their tags."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property

from findleaks.allocators.base import Problem
from findleaks.allocators.directory import Directory
from findleaks.allocators.memory import Memory
from findleaks.runtimes.apr.pools import Node, Pool, PoolReader
from findleaks.runtimes.base import Part, Runtime, Type
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.pool_tree import PoolNode, Words, add_up, find_large_pool
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges

UNTAGGED = "(no tag)"
WORDS = Words("apr-pool", "APR pool", "pools", "APR's pools")
REMEDIES = ("clear or destroy the pool when its memory is no longer needed, or allocate from the pool of a request or an operation",)


class Apr(Runtime):
    """APR in a process. See base.Runtime. `where` is the name of libapr, `root` the address of its
    outermost pool."""

    name = "APR"
    version = ""

    def __init__(self, target: Target, directory: Directory, where: str, root: int) -> None:
        self.problems: list[Problem] = []
        self.where = where
        self._target, self._directory, self._root = target, directory, root
        self._reader = PoolReader(Memory(target))

    @cached_property
    def pools(self) -> Sequence[Pool]:
        """The outermost pool, and all pools below it."""
        found = list(self._reader.read(self._root))
        self.problems += [Problem(address, what, False) for address, what in self._reader.problems]
        return found

    def findings(self) -> Sequence[Finding]:
        """Return one finding if a pool and the pools below it have much memory."""
        nodes: dict[int, PoolNode] = {}
        for pool in self.pools:
            nodes[pool.address] = PoolNode(pool.address, self._name(pool), nodes.get(pool.parent), pool.bytes)
        add_up(list(nodes.values()))
        inside = any(self._is_block(pool.nodes[0]) for pool in self.pools[:1] if pool.nodes)
        return find_large_pool(nodes[self.pools[0].address], WORDS, REMEDIES, inside) if nodes else []

    def _name(self, pool: Pool) -> str:
        """Return the tag of a pool; for a pool without one, "(no tag)" with the function that
        is called first when it is destroyed."""
        symbol = self._target.symbolize(pool.cleanup) if pool.cleanup and not pool.tag else None
        return pool.tag or (f"{UNTAGGED}, cleanup {symbol.name}" if symbol is not None else UNTAGGED)

    def parts(self) -> Sequence[Part]:
        """Return the nodes of pools, and the free nodes of APR's allocators."""
        nodes = [node for pool in self.pools for node in pool.nodes]
        free = [node for allocator in {pool.allocator for pool in self.pools} for node in self._reader.free_nodes(allocator)]
        used = sum(node.free - node.start for node in nodes)
        made = [self._part("pools", nodes, used, f"{len(self.pools):,} pools, {len(nodes):,} nodes", False)] if nodes else []
        return [*made, self._part("free nodes", free, 0, f"{len(free):,} nodes", True)] if free else made

    def _part(self, name: str, nodes: Sequence[Node], used: int, detail: str, freed: bool) -> Part:
        inside = any(map(self._is_block, nodes))
        return Part(name, merge_ranges(Range(node.start, node.end) for node in nodes), used, inside, detail, freed=freed)

    def _is_block(self, node: Node) -> bool:
        return self._directory.blocks.find(node.start) >= 0

    def types(self) -> Sequence[Type]:
        """Return the pools by tag."""
        sums: dict[str, list[int]] = {}
        for pool in self.pools:
            its = sums.setdefault(self._name(pool), [0, 0, 0])
            for at, value in enumerate((1, pool.bytes, sum(node.free - node.start for node in pool.nodes))):
                its[at] += value
        return [Type(tag, count, total, {"used": used, "free": total - used}) for tag, (count, total, used) in sums.items()]

    def describe(self, address: int) -> str:
        at = bisect_right(self._places, (address, address, "~")) - 1
        return f"APR pool {self._places[at][2] or UNTAGGED}" if at >= 0 and address < self._places[at][1] else ""

    @cached_property
    def _places(self) -> Sequence[tuple[int, int, str]]:
        """The start, end and tag of each node, ascending."""
        return sorted((node.start, node.end, pool.tag) for pool in self.pools for node in pool.nodes)
