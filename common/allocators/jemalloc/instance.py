"""One jemalloc as an Allocator: its extents as heaps, its thread caches, its counters."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Optional

from findleaks.allocators import base
from findleaks.allocators.base import Allocator, Heap, Problem
from findleaks.allocators.jemalloc import arenas, extents, in_flight, names, profile, report, tcache
from findleaks.allocators.jemalloc.view import Parts
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import RUN, State
from findleaks.target.base import Range, Target

if TYPE_CHECKING:
    from findleaks.allocators.retention import FreeMemory, Retention
    from findleaks.allocators.sites import Recording

SHOWN = 16  # cached addresses without a block that are reported; further ones are only counted


class Jemalloc(Allocator):
    """One jemalloc; see Allocator."""

    name = "jemalloc"
    release_call = 'mallctl("arena.4096.purge")'  # MALLCTL_ARENAS_ALL is 4096
    cache_setting = (
        "MALLOC_CONF=tcache_max:4096,background_thread:true,dirty_decay_ms:1000 (larger blocks are not cached), or "
        'mallctl("thread.tcache.flush") in threads that go idle'
    )
    site_settings = ("MALLOC_CONF=prof:true,lg_prof_sample:0 (needs a build with --enable-prof, as Debian's)",)
    granule = 8

    def __init__(self, target: Target, engine: Engine, parts: Parts, version: str, problems: list[Problem]) -> None:
        self.target = target
        self.engine = engine
        self.memory = Memory(target)
        self.parts = parts
        self.version = version
        self.where = parts.image.name
        self.problems = problems
        self.caches_found: list[tcache.JemallocCache] = []
        self.internal: set[int] = set()  # blocks that jemalloc allocated for itself
        self.profiler = profile.ProfilerBlocks()
        self._heaps: Optional[list[Heap]] = None
        self._find_caches()

    def _find_caches(self) -> None:
        """Read the thread caches that arenas list, and find the thread of each. If arenas list
        none, search for caches."""
        memory, parts, layout = self.memory, self.parts, self.parts.extents.layout
        if parts.shape.tcaches is not None:
            for arena in parts.arenas:
                ring, why = arenas.follow_ring(memory, arena, parts.shape.tcaches)
                if why:
                    what = f"the list of thread caches of arena {arena.index} {why}: blocks in those that follow count as in use"
                    self.problems.append(Problem(arena.address + parts.shape.tcaches, what))
                self.caches_found += [tcache.read_cache(memory, parts.classes, layout, arena, *found) for found in ring]
        elif not parts.shape.counts:
            for found in tcache.find_unlisted(memory, self.engine, parts.classes, layout, self.target.threads(), parts.arenas):
                self.caches_found.append(tcache.read_cache(memory, parts.classes, layout, *found))
        page = parts.classes.page
        leaves = {leaf: first << page for leaf, first in parts.leaves}
        tcache.attribute_threads(memory, self.caches_found, self.target.threads(), leaves)
        for cache in self.caches_found:
            self.problems += [Problem(cache.address, f"the {cache.label} at {cache.address:#x} {what}") for what in cache.problems]
        if parts.shape.bins is None and not self.caches_found and any(parts.extents.slab):
            address = parts.arenas[0].address if parts.arenas else parts.root.address
            what = "the arenas' bins were not found, and no thread cache: freed blocks in thread caches count as in use"
            self.problems.append(Problem(address, what))

    def heaps(self) -> list[Heap]:
        """Return runs of adjacent extents of one arena, in any state."""
        if self._heaps is None:
            seen = self.parts.extents
            self._runs = seen.runs()
            self._starts = list(self._runs[0::RUN])
            slabs = extents.find_pageslabs(self.memory, self.parts.bases, seen)
            self._heaps = [self._heap(start, end, arena) for start, end, arena in extents.group_extents(seen, slabs)]
        return self._heaps

    def _heap(self, start: int, end: int, arena: int) -> Heap:
        def walk(blocks: Blocks) -> None:
            first, last = bisect_left(self._starts, start), bisect_left(self._starts, end)
            blocks.append_runs(self._runs[RUN * first : RUN * last], self.parts.extents.raw)

        return Heap(start, end, arenas.format_name(arena), walk)

    def mark_blocks(self, blocks: Blocks) -> None:
        """Mark the cached blocks, and the blocks that jemalloc allocated for itself: stacks of
        caches, and blocks of the profiler."""
        cached = array("Q", (entry for cache in self.caches_found for entry in cache.entries()))
        unknown = blocks.set_state(cached, State.CACHED) if cached else []
        for entry in unknown[:SHOWN]:
            self.problems.append(Problem(entry, f"a thread cache holds {entry:#x}, where no block begins"))
        if len(unknown) > SHOWN:
            what = f"thread caches hold {len(unknown) - SHOWN:,} more addresses where no block begins"
            self.problems.append(Problem(unknown[SHOWN], what))
        for cache in self.caches_found:
            index = blocks.find(cache.stacks_at) if cache.stacks_at else -1
            if index >= 0:
                self.internal.add(blocks.address(index))
        near = [tcache.find_storage(self.memory, cache) for cache in self.caches_found]
        self.profiler = profile.find_profiler(self.memory, self.engine, self.parts.image, self.parts.extents, near)
        for block in self.profiler.blocks:
            index = blocks.find(block)
            if index >= 0 and blocks.address(index) == block and blocks.state(index) == State.IN_USE:
                self.internal.add(block)
        blocks.set_state(array("Q", sorted(self.internal)), State.METADATA)
        self.problems += report.reconcile(self)

    def metadata(self) -> list[Range]:
        """Return the base allocator's blocks, the tree's root, the table of classes, and the thread
        caches with their cached parts of the tree."""
        parts = self.parts
        caches = [part for cache in self.caches_found for part in cache.own]
        return sorted([*parts.bases.ranges(), parts.root.range, parts.classes.table, *caches])

    def summary(self) -> dict[str, object]:
        return report.summarize(self)

    def locate(self, address: int) -> str:
        parts = self.parts
        seen = parts.extents
        i = seen.at(address)
        if i >= 0:
            where = arenas.format_name(seen.arena[i])
            if seen.state[i]:
                return f"{extents.get_state_name(seen.state[i])} pages of {where}"
            size = seen.usable(i) if seen.good[i] else 0
            return f"slab of {size}-byte regions of {where}" if seen.slab[i] else f"extent of a {size}-byte block of {where}"
        own = [([parts.root.range], "root of the radix tree"), ([parts.classes.table], "table of small classes")]
        own += [(cache.own, cache.label) for cache in self.caches_found]
        for ranges, what in own:
            if any(start <= address < end for start, end in ranges):
                return what
        if any(start <= address < end for start, end in parts.bases.ranges()):
            near = [arena for arena in parts.arenas if arena.address <= address < arena.address + (parts.shape.bins or 0)]
            return f"arena {near[0].index}'s structure" if near else "jemalloc's own memory"
        return ""

    def caches(self, blocks: Blocks) -> list[base.Cache]:
        return report.list_caches(self)

    def arenas(self, blocks: Blocks) -> list[base.Arena]:
        return report.list_arenas(self)

    def spare(self, blocks: Blocks) -> list[base.Spare]:
        seen = self.parts.extents
        idle = [i for i, state in enumerate(seen.state) if state]
        return [
            base.Spare(seen.start[i], seen.end(i), extents.get_state_name(seen.state[i]), arenas.format_name(seen.arena[i])) for i in idle
        ]

    def rename_settings(self, words: str) -> str:
        return names.rename_settings(words, self._variable)

    @cached_property
    def _variable(self) -> str:
        return names.find_variable(self.target, self.parts.image.module)

    def retention(self, free: FreeMemory) -> Retention:
        # Only `verdict` needs this module.
        from findleaks.allocators.jemalloc.retention import explain_retention

        return explain_retention(free, self.release_call, self.memory, self.parts.arenas)

    @property
    def has_recordings(self) -> bool:
        return self.profiler.row is not None

    def recordings(self, blocks: Blocks) -> Sequence[Recording]:
        # Few commands need stacks.
        from findleaks.allocators.jemalloc.sites import make_recordings

        return make_recordings(self, blocks)

    def thread_caches(self, blocks: Blocks) -> list[base.ThreadCache]:
        sizes = self.parts.classes.sizes
        found = []
        for cache in self.caches_found:
            for stack in cache.stacks:
                count = len(stack.blocks)
                if count:
                    size = sizes[stack.szind]
                    found.append(base.ThreadCache(cache.tid, cache.address, str(size), size, count, count * size))
        return found

    def read_counters(self) -> Mapping[str, int]:
        """Return stats.* as malloc_stats_print prints them."""
        return report.sum_totals(self)

    def blocks_in_flight(self, words: Sequence[int], blocks: Blocks) -> Iterator[int]:
        """Yield the blocks that these words refer to; see in_flight."""
        return in_flight.find_blocks_in_flight(self, words, blocks)

    def verify(self, blocks: Blocks) -> Iterator[Problem]:
        from findleaks.allocators.jemalloc.verify import verify  # only `verify` needs it

        return verify(self)
