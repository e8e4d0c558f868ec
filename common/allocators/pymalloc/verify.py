"""Check pymalloc's structures for problems that the reader does not find."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.pymalloc.layout import Layout
from findleaks.allocators.pymalloc.locate import ArenaObject, State
from findleaks.allocators.pymalloc.pools import Pools, carve_pools


class PymallocView(Protocol):
    """The part of instance.Pymalloc that the checks need. They only read it."""

    memory: Memory
    layout: Layout
    state: State
    arena_objects: list[ArenaObject]
    pools: Pools


def verify(allocator: PymallocView) -> Iterator[Problem]:
    """Check the rings of pools in use, and the lists of free pools.

    A pool that is not full is in the ring of its size class, linked in both directions. A full pool
    is in no ring. Free pools are in the list of their arena, whose counter must agree."""
    yield from _rings(allocator)
    yield from _free_pools(allocator)


def _rings(allocator: PymallocView) -> Iterator[Problem]:
    """Check the links of pools that are not full."""
    pools, layout = allocator.pools, allocator.layout
    word = layout.word
    memory = allocator.memory
    full = [layout.block_count(allocator.state.pool, index) for index in range(layout.classes)]
    for pool, index, count, after, before in zip(pools.address, pools.index, pools.count, pools.after, pools.before):
        if count == full[index]:
            continue  # the pool is in no ring, so its links are stale
        back, forth = memory.word(after + 3 * word), memory.word(before + 2 * word)
        for what, link, found in (("nextpool", after, back), ("prevpool", before, forth)):
            if found != pool:
                says = "cannot be read" if found is None else f"says {found:#x}"
                other = "prevpool" if what == "nextpool" else "nextpool"
                text = f"pymalloc pool {pool:#x} has free blocks, but its {what} {link:#x} does not link back"
                yield Problem(pool, f"{text}: its {other} {says}")


def _free_pools(allocator: PymallocView) -> Iterator[Problem]:
    """Check each arena's list of free pools against its counter and the pools in use."""
    memory, size, word = allocator.memory, allocator.state.pool, allocator.layout.word
    in_use = set(allocator.pools.address)
    for arena in allocator.arena_objects:
        cut = carve_pools(arena, size)
        name = f"pymalloc arena {arena.number} at {arena.address:#x}: its list of free pools"
        known: set[int] = set()
        pool, why = arena.freepools, ""
        while pool and not why:
            following = memory.word(pool + 2 * word)
            if pool in known:
                why = f" has a cycle at {pool:#x}"
            elif pool not in cut:
                why = f" has {pool:#x}, which is not the start of a pool of this arena"
            elif pool in in_use:
                why = f" has {pool:#x}, which holds blocks in use"
            elif following is None:
                why = f": {pool:#x} cannot be read"
            else:
                known.add(pool)
                pool = following
        empty = allocator.pools.empty.get(arena.number, 0)
        if why:
            yield Problem(pool, name + why)
        elif len(known) != empty:
            yield Problem(arena.address, f"{name} has {len(known)} pools; {empty} are free")
