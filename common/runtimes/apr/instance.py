"""The pools of APR, as a runtime whose types are the tags of the pools."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Optional

from findleaks.allocators.apr_nodes import NODE, Node
from findleaks.allocators.base import Problem
from findleaks.allocators.bulk import MOST_RANGES, find_pointers_into
from findleaks.allocators.directory import Directory
from findleaks.allocators.images import Image, find_images
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.formatting import size
from findleaks.runtimes.apr.holders import PoolObjects, Reference, find_spans, list_pointers
from findleaks.runtimes.apr.pools import Pool, PoolReader, find_by_nodes, find_unmanaged
from findleaks.runtimes.apr.texts import find_texts
from findleaks.runtimes.base import NO_OBJECT, ObjectTypes, Part, Runtime, Type
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.pool_tree import PoolNode, Words, add_up, describe_large_pool, find_alike_pools, find_large_node
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges, merge_to_most

UNTAGGED = "(no tag)"
LEAST_PART = 1 / 8  # least part of a finding's memory in a pool of which the variable is searched
MOST_PARTS = 3  # most such pools
WITHOUT_POOLS = ("ld-", "ld.", "libc.", "libc-")
"""Prefixes of the names of libraries that use no pools. Their variables are not searched, because
they may contain stale addresses of pools."""
WORDS = Words("apr-pool", "APR pool", "pools", "APR's pools")
REMEDIES = ("clear or destroy the pool when its memory is no longer needed, or allocate from the pool of a request or an operation",)

UNMANAGED = ("pass each of these pools to apr_pool_destroy when its memory is no longer needed: no other pool destroys them",)


class Apr(Runtime):
    """APR in a process. See base.Runtime. `image` is libapr, `root` the address of its outermost
    pool."""

    name = "APR"
    version = ""
    objects_are_native = True
    is_pools = True

    def __init__(self, target: Target, engine: Engine, directory: Directory, image: Image, root: int) -> None:
        self.problems: list[Problem] = []
        self.where = image.name
        self._target, self._engine, self._directory, self._image, self._root = target, engine, directory, image, root
        self._memory = Memory(target)
        self._reader = PoolReader(self._memory)

    @cached_property
    def pools(self) -> Sequence[Pool]:
        """The outermost pool and all pools below it, then each unmanaged pool and those below
        it."""
        blocks, heaps = self._directory.blocks, self._directory.ranges()
        unmanaged = find_unmanaged(self._memory, self._engine, blocks)
        shared = find_by_nodes(self._memory, self._engine, blocks, heaps)
        roots = dict.fromkeys((self._root, *unmanaged, *shared))
        found = [pool for root in roots for pool in self._reader.read(root)]
        self.problems += [Problem(address, what, False) for address, what in self._reader.problems]
        return found

    def findings(self) -> Sequence[Finding]:
        """Return one finding if a pool and the pools below it have much memory."""
        nodes: dict[int, PoolNode] = {}
        if sum(not pool.parent for pool in self.pools) > 1:  # several outermost pools
            nodes[0] = PoolNode(0, "", None, 0)
        for pool in self.pools:
            nodes[pool.address] = PoolNode(pool.address, self._name(pool), nodes.get(pool.parent), pool.bytes)
        add_up(list(nodes.values()))
        top = next(iter(nodes.values()), None)
        large = find_large_node(top) if top is not None else None
        inside = any(self._is_block(pool.nodes[0]) for pool in self.pools[:1] if pool.nodes)
        if top is None or large is None:
            return find_alike_pools(top, WORDS, UNMANAGED, inside) if top is not None and not top.name else []
        pools, below = {one.address: one for one in self.pools}, [node for node in nodes.values() if _is_below(node, large)]
        resident = None if inside else self._count_resident([pools[node.address] for node in below])
        finding = self._add_texts(describe_large_pool(large, top, WORDS, REMEDIES, inside, resident), below)
        parts = [node for node in below if node.bytes >= LEAST_PART * large.bytes_below]
        largest = (pools[node.address] for node in sorted(parts, key=lambda node: -node.bytes)[:MOST_PARTS])
        return [next((found for found in (self._add_holder(finding, one) for one in largest) if found is not finding), finding)]

    def _count_resident(self, pools: Sequence[Pool]) -> Optional[int]:
        """Return the resident bytes of the pools' nodes; None if they are unknown."""
        found = 0
        for start, end in merge_ranges(Range(node.start, node.end) for pool in pools for node in pool.nodes):
            resident = self._target.resident(start, end)
            if resident is None:
                return None
            found += resident
        return found

    def _add_texts(self, finding: Finding, below: Sequence[PoolNode]) -> Finding:
        """Add to a finding examples of the texts in the pools that have most of its memory, and
        that have the same name."""
        sums = dict[str, int]()
        for node in below:
            sums[node.name] = sums.get(node.name, 0) + node.bytes
        name = max(sums, key=lambda name: sums[name])
        ours = {node.address for node in below if node.name == name}
        spans = [span for pool in self.pools if pool.address in ours for span in find_spans(self._memory, pool)]
        texts = find_texts(self._memory, spans)
        if not texts:
            return finding
        owner = name if len(ours) == 1 else f"the pools {name}"
        cause = f"{finding.cause} Texts in {owner}: {', '.join(texts)}."
        return replace(finding, cause=cause, facts={**finding.facts, "texts": list(texts)})

    def _add_holder(self, finding: Finding, pool: Pool) -> Finding:
        """Add to a finding the variable from which most of the pool's memory is reachable. Return
        the same finding if there is no such variable."""
        spans = find_spans(self._memory, pool)
        pointers = list_pointers(self._target, self._engine, spans)
        if pointers is None:
            return finding
        memory = merge_ranges(Range(start, end) for start, end in spans)
        references = [Reference(self._symbol(place), image.name, value) for image, place, value in self._pointers_to(memory)]
        holder = PoolObjects(spans, *pointers, references).find_holder()
        if holder is None:
            return finding
        part = f"{size(holder.bytes)} of {pool.tag or 'the pool'} is reachable from {holder.name}, and not from other variables."
        facts = {**finding.facts, "variable": holder.name, "reachable_bytes": holder.bytes}
        return replace(finding, cause=f"{finding.cause} {part}", facts=facts)

    def _symbol(self, place: int) -> str:
        symbol = self._target.symbolize(place)
        return symbol.name if symbol is not None else ""

    def _name(self, pool: Pool) -> str:
        """Return the tag of a pool. For a pool without a tag, return "(no tag)", and the name
        of the function that is called first when the pool is destroyed. If this function is
        unknown, use the name of a variable that refers to the pool's memory instead."""
        if pool.tag:
            return pool.tag
        cleanup = self._symbol(pool.cleanup) if pool.cleanup else ""
        hint = f"cleanup {cleanup}" if cleanup else self._variables.get(pool.address, "")
        return f"{UNTAGGED}, {hint}" if hint else UNTAGGED

    @cached_property
    def _variables(self) -> Mapping[int, str]:
        """A variable that refers to the memory of each pool without a tag ("variable cache"), by
        the address of the pool. A variable with the address of the pool itself is preferred."""
        nodes = sorted((node.start, node.end, pool.address) for pool in self.pools if not pool.tag for node in pool.nodes)
        # Each key is the pool, and whether the word has the pool's own address. Keys of such words
        # are sorted last, so their variables replace other variables.
        places: dict[tuple[int, bool], int] = {}
        for _, place, value in self._pointers_to(merge_ranges(Range(start, end) for start, end, _ in nodes)):
            start, end, pool = nodes[max(bisect_right(nodes, (value + 1,)) - 1, 0)]
            if start <= value < end:
                places.setdefault((pool, value == pool), place)
        names = ((pool, self._symbol(places[pool, exact])) for pool, exact in sorted(places))
        return {pool: f"variable {name}" for pool, name in names if name}

    def _pointers_to(self, ranges: Sequence[Range]) -> Iterator[tuple[Image, int, int]]:
        """Find words that refer to these ranges, in the data of the program and of libraries that
        may use pools. Yield the file, the address and the value of each such word."""
        few = merge_to_most(ranges, MOST_RANGES)
        for image in find_images(self._target) if few else ():
            if image.module != self._image.module and not image.name.startswith(WITHOUT_POOLS):
                for piece in image.pieces(self._target):
                    for place, value in zip(*find_pointers_into(self._engine, piece, few)):
                        yield image, place, value

    def parts(self) -> Sequence[Part]:
        """Return the nodes of pools, and the free nodes of APR's allocators."""
        nodes, free = [node for pool in self.pools for node in pool.nodes], self._free_nodes
        used = sum(node.free - node.start for node in nodes)
        made = [self._part("pools", nodes, used, f"{len(self.pools):,} pools, {len(nodes):,} nodes", False)] if nodes else []
        return [*made, self._part("free nodes", free, 0, f"{len(free):,} nodes", True)] if free else made

    @cached_property
    def _free_nodes(self) -> Sequence[Node]:
        """The free nodes of the allocators of all pools."""
        return [node for allocator in {pool.allocator for pool in self.pools} for node in self._reader.free_nodes(allocator)]

    def bookkeeping(self) -> Sequence[Range]:
        """Return the unused parts of nodes, which may contain addresses from before a pool was
        cleared. Free nodes have headers."""
        unused = [(node.free, node.end) for pool in self.pools for node in pool.nodes]
        unused += [(node.start + NODE, node.end) for node in self._free_nodes]
        return [Range(start, end) for start, end in unused if start < end]

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

    @cached_property
    def _owners(self) -> Mapping[int, Pool]:
        """The pool of each block of malloc that is a node of a pool, by the block's index."""
        found = ((self._directory.blocks.find(node.start), pool) for pool in self.pools for node in pool.nodes)
        return {index: pool for index, pool in found if index >= 0}

    def object_types(self) -> Optional[ObjectTypes]:
        """Return the name of the pool of each block; None if no node is a block of malloc."""
        if not self._owners:
            return None
        numbers = {name: number for number, name in enumerate(dict.fromkeys(map(self._name, self._owners.values())))}
        types = array("I", [NO_OBJECT]) * len(self._directory.blocks)
        for index, pool in self._owners.items():
            types[index] = numbers[self._name(pool)]
        return ObjectTypes(types, list(numbers), array("I", [1] * len(numbers)), self.name, "APR pool", True)

    def interior_offsets(self) -> Sequence[tuple[int, int]]:
        """Return pairs: the size of a block that is a pool's first node, and the offset of the pool
        in it. The program and other pools refer to the pool, not to the start of the block."""
        blocks = self._directory.blocks
        heads = ((blocks.address(index), blocks.size(index), pool.address) for index, pool in self._owners.items())
        return sorted({(size, NODE) for start, size, pool in heads if start + NODE == pool})

    def describe(self, address: int) -> str:
        at = bisect_right(self._places, (address + 1,)) - 1
        return f"APR pool {self._places[at][2]}" if at >= 0 and address < self._places[at][1] else ""

    @cached_property
    def _places(self) -> Sequence[tuple[int, int, str]]:
        """The start and end of each node, and the name of its pool, ascending."""
        return sorted((node.start, node.end, self._name(pool)) for pool in self.pools for node in pool.nodes)


def _is_below(node: Optional[PoolNode], above: PoolNode) -> bool:
    """Whether a pool is `above`, or is below it."""
    while node is not None and node is not above:
        node = node.parent
    return node is not None
