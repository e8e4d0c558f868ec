"""nginx's pools, as a runtime whose types are the owners of the pools."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.directory import Directory
from findleaks.allocators.images import find_version
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.formatting import format_count, number, size
from findleaks.runtimes.base import NO_OBJECT, ObjectTypes, Part, Runtime, Type
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.nginx.pools import HEADER, OTHER, Pool, PoolReader
from findleaks.runtimes.nginx.zones import find_zones
from findleaks.target.base import Module, Range, Target
from findleaks.target.ranges import merge_ranges

HELD = 8 << 20  # least bytes of the pools of one sort of owner for a finding
PART = 0.5  # the least fraction of the bytes of all pools that these must have
ONE_OWNER = {"HTTP request": "an HTTP request", OTHER: "another owner"}
"""Owners with their article, if it is not "a"."""
_VERSION = re.compile(rb"nginx/(\d+\.\d+\.\d+)")


class Nginx(Runtime):
    """nginx in a process. See base.Runtime."""

    name = "nginx"
    objects_are_native = True

    def __init__(self, target: Target, engine: Engine, directory: Directory, module: Module) -> None:
        self.problems: list[Problem] = []
        self.where = module.path.rpartition("/")[2]
        self._target, self._engine, self._directory, self._module = target, engine, directory, module
        self._memory = Memory(target)
        self._reader = PoolReader(self._memory, engine, directory.blocks, directory.ranges(), Range(module.start, module.end))

    @cached_property
    def version(self) -> str:  # type: ignore[override]
        """nginx's version, or ""."""
        return find_version(self._target, self._module, _VERSION)

    @cached_property
    def pools(self) -> Sequence[Pool]:
        """All pools."""
        return self._reader.read()

    @cached_property
    def _owners(self) -> Mapping[int, Pool]:
        """The pool of each block, by index."""
        return {index: pool for pool in self.pools for index in (*pool.blocks, *pool.large)}

    def _bytes(self, pool: Pool) -> int:
        return sum(self._directory.blocks.size(index) for index in (*pool.blocks, *pool.large))

    def types(self) -> Sequence[Type]:
        """Return the pools by owner. `large` is the number of requests that have blocks of their
        own."""
        sums: dict[str, list[int]] = {}
        for pool in self.pools:
            its = sums.setdefault(f"pool of {pool.owner}", [0, 0, 0, 0, 0])
            for at, value in enumerate((1, self._bytes(pool), pool.used, len(pool.blocks), len(pool.large))):
                its[at] += value
        return [
            Type(name, count, total, {"used": used, "blocks": blocks, "large": large})
            for name, (count, total, used, blocks, large) in sums.items()
        ]

    def parts(self) -> Sequence[Part]:
        """Return the blocks of pools, and the shared zones."""
        blocks = self._directory.blocks
        ranges = merge_ranges(Range(blocks.address(index), blocks.address(index) + blocks.size(index)) for index in self._owners)
        found = [Part("pools", ranges, sum(pool.used for pool in self.pools), True, format_count(len(self.pools), "pool"))]
        for zone in find_zones(self._memory, self._engine, self._directory.ranges()):
            used = (zone.pages - zone.free) * self._target.arch.page
            detail = f"{zone.pages:,} pages, {zone.free:,} free"
            found.append(Part(f"shared zone {zone.name}".rstrip(), [Range(zone.start, zone.end)], used, False, detail))
        return found

    def findings(self) -> Sequence[Finding]:
        """Return one finding if the pools of one sort of owner have most of the memory of pools."""
        sums: dict[str, int] = {}
        for pool in self.pools:
            sums[pool.owner] = sums.get(pool.owner, 0) + self._bytes(pool)
        owner = max(sums, key=lambda one: (sums[one], one), default=OTHER)
        whole, total = sum(sums.values()), sums.get(owner, 0)
        if total < HELD or total < PART * whole:
            return []
        pools = [pool for pool in self.pools if pool.owner == owner]
        largest = max(pools, key=lambda pool: (self._bytes(pool), -pool.address))
        one = ONE_OWNER.get(owner, f"a {owner}")
        amount = f"{number(len(pools))} nginx pools of {owner}s have" if len(pools) > 1 else f"the nginx pool of {one} has"
        title = f"In use, not leaked: {amount} {size(total)}, {100 * total // whole} % of nginx's pools."
        line = self._reader.request_line(largest) if owner.startswith("HTTP") else ""
        cause = f"The largest, at {largest.address:#x}, has {size(self._bytes(largest))}: {format_count(len(largest.blocks), 'block')} and "
        cause += f"{format_count(len(largest.large), 'large allocation')}{f', for {line!r}' if line else ''}."
        facts: dict[str, object] = {"owner": owner, "pools": len(pools), "largest": f"{largest.address:#x}", "request": line or None}
        members = [index for pool in pools for index in (*pool.blocks, *pool.large)]
        return [
            Finding(
                "nginx-pools", total, title, cause, (), ("runtime", f"whatis {largest.address:#x}"), facts, of_blocks=True, members=members
            )
        ]

    def object_types(self) -> Optional[ObjectTypes]:
        """Return the owner of the pool of each block."""
        names = list(dict.fromkeys(f"pool of {pool.owner}" for pool in self.pools))
        types = array("I", [NO_OBJECT]) * len(self._directory.blocks)
        for index, pool in self._owners.items():
            types[index] = names.index(f"pool of {pool.owner}")
        return ObjectTypes(types, names, array("I", [1] * len(names)), self.name, "nginx memory", True)

    def interior_offsets(self) -> Sequence[tuple[int, int]]:
        """Return the offset of the first object in a pool. Its owner is often that object."""
        return sorted({(self._directory.blocks.size(pool.blocks[0]), HEADER) for pool in self.pools if pool.blocks})

    def pooled_memory(self) -> Sequence[tuple[int, Range]]:
        """Return the blocks of pools, without those of large requests. The memory in use begins
        with the header of the pool."""
        return [(index, memory) for pool in self.pools for index, memory in zip(pool.blocks, pool.memory)]

    def bookkeeping(self) -> Sequence[Range]:
        """Return the unused ends of the pools' blocks. They may contain addresses from before
        malloc returned the block to the pool."""
        return [unused for pool in self.pools for unused in pool.unused]

    def describe(self, address: int) -> str:
        pool = self._owners.get(self._directory.blocks.find(address))
        return f"pool of {pool.owner} at {pool.address:#x}" if pool is not None else ""
