"""One interpreter's pymalloc as an Allocator."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from findleaks.allocators.base import Allocator, Arena, Cache, Heap, Problem
from findleaks.allocators.images import Image, find_images
from findleaks.allocators.memory import Memory
from findleaks.allocators.pymalloc import pools as reading
from findleaks.allocators.pymalloc.layout import POOLS, layout_of
from findleaks.allocators.pymalloc.locate import ArenaObject, State, spans
from findleaks.allocators.pymalloc.types import types
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import Heuristic
from findleaks.engine.terms import State as BlockState
from findleaks.target.base import Range, Target
from findleaks.target.ranges import range_at

_BUILD = rb"(?:(?:experimental )?free-threading build )?"
VERSION = re.compile(
    rb"3\.\d{1,2}\.\d{1,2}(?:(?:a|b|rc)\d{1,2})?\+? " + _BUILD + rb"\([^\0]{1,100}\) ?\[?[^\0]{0,80}(?:GCC|Clang|clang|MSC)"
)
"""sys.version as Py_GetVersion formats it (Python/getversion.c). The pattern begins with a literal
and has no look-behind, which makes the search five times as fast."""


class Pymalloc(Allocator):
    """One interpreter's pymalloc; see Allocator. `number` is 0 for the main interpreter, and up to
    3.11, for all interpreters together. Other interpreters are numbered from the newest."""

    name = "pymalloc"
    managed = True
    retention_note = "CPython returns an arena only when no block in it is in use"
    nested = True

    def __init__(
        self, target: Target, engine: Engine, image: Image, state: State, metatype: int, taken: Sequence[Range], number: int
    ) -> None:
        self.target = target
        self.engine = engine
        self.state = state
        self.number = number
        self.image = image
        self.metatype = metatype
        self._types: dict[tuple[Range, ...], list[int]] = {}
        self.layout = layout_of(target.arch)
        self.granule = self.layout.align
        self.memory = Memory(target)
        self.where = image.name
        self.version = version_of(target, image) or ("3.10 or later" if state.pool > 4096 else "3.9")
        self.problems: list[Problem] = []
        self.arena_size = POOLS * state.pool
        groups = [part for group in spans(state.arenas, self.arena_size) for part in _apart(group, taken)]
        self.arena_objects = [arena for group in groups for arena in group]
        self._overlaps()
        self.pools = reading.read(target, engine, self.layout, state.pool, self.arena_objects)
        self.problems += self.pools.problems
        self._heaps = [self._heap(group) for group in groups]
        self._walked: list[Range] = []
        self._count_arenas()

    def _overlaps(self) -> None:
        """Report arenas that overlap other arenas."""
        kept = {arena.number for arena in self.arena_objects}
        for arena in self.state.arenas:
            if arena.number not in kept:
                what = f"pymalloc arena {arena.number} at {arena.address:#x} overlaps another: left out"
                self.problems.append(Problem(arena.address, what))

    def _count_arenas(self) -> None:
        """Compare the number of arenas with the allocator's counter."""
        current = self.state.variable(self.memory, "current")
        if self.state.variables is None:
            what = f"pymalloc's counters are in no known layout: {len(self.arena_objects)} arenas are unchecked"
            self.problems.append(Problem(self.state.pointer, what, False))
        elif current != len(self.state.arenas):
            what = f"pymalloc counts {current} arenas; {len(self.state.arenas)} were found"
            self.problems.append(Problem(self.state.pointer, what))

    def heaps(self) -> list[Heap]:
        """Return the heaps; adjacent arenas form one heap."""
        return self._heaps

    def _heap(self, group: Sequence[ArenaObject]) -> Heap:
        start, end = group[0].address, group[-1].address + self.arena_size
        first, last = bisect_left(self.pools.address, start), bisect_left(self.pools.address, end)

        def walk(blocks: Blocks) -> None:
            blocks.append_runs(self.pools.runs(self.layout, self.state.pool, first, last))
            self._walked.append(Range(start, end))

        foreign = [bad for bad in self.pools.bad if start <= bad.start < end]
        label = f"arena {group[0].number}" if len(group) == 1 else f"{len(group)} arenas"
        return Heap(start, end, label, walk, [], foreign)

    def mark_blocks(self, blocks: Blocks) -> None:
        self._walked.sort()
        unknown = [node for node in blocks.set_state(self.pools.free, BlockState.FREE) if range_at(self._walked, node)]
        for node in unknown[:20]:
            pool = self.pools.address[bisect_right(self.pools.address, node) - 1]
            what = f"pymalloc pool {pool:#x}: its list of freed blocks has {node:#x}, where no block begins"
            self.problems.append(Problem(node, what))
        for arena in self.arena_objects:
            there = self.pools.empty.get(arena.number, 0) + arena.ntotalpools - len(reading.carve_pools(arena, self.state.pool))
            if there != arena.nfreepools:
                what = f"pymalloc arena {arena.number} at {arena.address:#x} counts {arena.nfreepools} free pools; {there} were found"
                self.problems.append(Problem(arena.address, what))
        self._compare(blocks)

    def _compare(self, blocks: Blocks) -> None:
        """Compare the number of blocks in use that the pools count with the number of blocks that
        are marked as in use."""
        counted = sum(cache.in_use for cache in self.caches(blocks))
        totals = sum(blocks.totals(BlockState.IN_USE, start, end).blocks for start, end in self._walked)
        if counted != totals:
            what = f"pymalloc's pools count {counted:,} blocks in use; {totals:,} were found"
            self.problems.append(Problem(self.state.pointer, what, False))

    def summary(self) -> dict[str, object]:
        return {
            "interpreter": self.number,
            "arenas": len(self.arena_objects),
            "arena_bytes": self.arena_size,
            "pool_bytes": self.state.pool,
            "arena_objects": hex(self.state.array),
            "reconciled": not self.problems,
        }

    def locate(self, address: int) -> str:
        for arena in self.arena_objects:
            if arena.address <= address < arena.address + self.arena_size:
                at = bisect_right(self.pools.address, address) - 1
                if at >= 0 and address < self.pools.address[at] + self.state.pool:
                    size = self.layout.size(self.pools.index[at])
                    what = "header" if address < self.pools.address[at] + self.layout.header else "end"
                    return f"{what} of a pool of {size}-byte blocks in arena {arena.number}"
                return f"free pool of arena {arena.number}"
        if self.state.array <= address < self.state.array + self.state.count * self.layout.object:
            return f"arena_object {(address - self.state.array) // self.layout.object}"
        return ""

    def heuristics(self, heaps: Sequence[Range]) -> tuple[Heuristic, Sequence[int]]:
        """Return the heuristics for Python objects, and the addresses of all types.

        Most references point to the address after a header: that of the garbage collector, and
        since 3.11 that of a managed dictionary or weak reference. Larger objects, which are in
        malloc's blocks, have the same headers."""
        if self.number:
            # Sub-interpreters share the main one's types, or have types in the same heaps.
            return Heuristic.NONE, ()
        found = self.types_in(heaps)
        values = Heuristic.DICT_VALUES if self.version.startswith(("3.11", "3.12", "3.10 or later")) else Heuristic.NONE
        return Heuristic.OBJECTS | values, found

    def types_in(self, heaps: Sequence[Range]) -> Sequence[int]:
        """Return the addresses of all types in these heaps and in files' data. They are searched
        for only once."""
        key = tuple(heaps)
        if key not in self._types:
            data = [part for image in find_images(self.target) for part in image.data]
            self._types = {key: types(self.target, self.engine, self.metatype, data, heaps)}
        return self._types[key]

    # ---- statistics ----

    def _mine(self) -> Iterator[int]:
        """Yield the indices of the pools in heaps that were walked."""
        for start, end in self._walked:
            yield from range(bisect_left(self.pools.address, start), bisect_left(self.pools.address, end))

    def caches(self, blocks: Blocks) -> list[Cache]:
        """Return the size classes as in sys._debugmallocstats(). Blocks of a pool that were never
        handed out are free."""
        numbers, used = [0] * self.layout.classes, [0] * self.layout.classes
        index, count = self.pools.index, self.pools.count
        for at in self._mine():
            numbers[index[at]] += 1
            used[index[at]] += count[at]
        made = []
        for number, pools in enumerate(numbers):
            if pools:
                size = self.layout.size(number)
                free = pools * self.layout.block_count(self.state.pool, number) - used[number]
                own = {"class": number, "num pools": pools, "blocks in use": used[number], "avail blocks": free}
                memory = pools * self.state.pool
                made.append(Cache("", str(size), size, used[number], 0, free, used[number] * size, 0, free * size, memory, None, None, own))
        return made

    def arenas(self, blocks: Blocks) -> list[Arena]:
        used: Counter[int] = Counter()
        free: Counter[int] = Counter()
        for at in self._mine():
            number, size = self.pools.arena[at], self.layout.size(self.pools.index[at])
            used[number] += self.pools.count[at] * size
            free[number] += (self.layout.block_count(self.state.pool, self.pools.index[at]) - self.pools.count[at]) * size
        made = []
        for arena in sorted(self.arena_objects):
            own = {"nfreepools": arena.nfreepools, "ntotalpools": arena.ntotalpools}
            made.append(Arena(f"arena {arena.number}", used[arena.number], 0, free[arena.number], self.arena_size, own))
        return made

    def read_counters(self) -> Mapping[str, int]:
        """Return the lines of sys._debugmallocstats() under their own names."""
        totals: dict[str, int] = {}
        times = self.state.variable(self.memory, "times")
        highwater = self.state.variable(self.memory, "highwater")
        current = self.state.variable(self.memory, "current")
        if times is not None and highwater is not None and current is not None:
            totals["arenas allocated total"] = times
            totals["arenas reclaimed"] = times - len(self.state.arenas)
            totals["arenas highwater mark"] = highwater
        pool, layout = self.state.pool, self.layout
        caches = self.caches_of_pools()
        spare = sum(arena.nfreepools for arena in self.arena_objects)
        totals["arenas allocated current"] = len(self.state.arenas)
        totals["bytes in arenas"] = len(self.state.arenas) * self.arena_size
        totals["bytes in allocated blocks"] = sum(layout.size(index) * used for index, (_, used) in caches.items())
        totals["bytes in available blocks"] = sum(
            layout.size(index) * (pools * layout.block_count(pool, index) - used) for index, (pools, used) in caches.items()
        )
        totals["unused pools"] = spare
        totals["bytes in unused pools"] = spare * pool
        totals["bytes lost to pool headers"] = len(self.pools) * layout.header
        totals["bytes lost to quantization"] = sum(
            pools * ((pool - layout.header) % layout.size(index)) for index, (pools, _) in caches.items()
        )
        totals["bytes lost to arena alignment"] = sum(
            self.arena_size - arena.ntotalpools * pool for arena in self.arena_objects if arena.address % pool
        )
        return totals

    def caches_of_pools(self) -> dict[int, tuple[int, int]]:
        """Return {size class: (pools, blocks in use)} for all arenas, including arenas whose heaps
        were not walked."""
        pools, used = Counter(self.pools.index), Counter[int]()
        for index, count in zip(self.pools.index, self.pools.count):
            used[index] += count
        return {index: (number, used[index]) for index, number in pools.items()}

    def verify(self, blocks: Blocks) -> Iterator[Problem]:
        from findleaks.allocators.pymalloc.verify import verify

        return verify(self)


def _apart(group: list[ArenaObject], taken: Sequence[Range]) -> list[list[ArenaObject]]:
    """Return one group with all arenas; or one group for each arena, if some are blocks of another
    allocator."""
    return [[arena] for arena in group] if any(range_at(taken, arena.address) for arena in group) else [group]


def version_of(target: Target, image: Image) -> str:
    """Return the interpreter's version, which is in its data, or ""."""
    for piece in image.pieces(target):
        for found in VERSION.finditer(piece.data):
            before = bytes(piece.data[max(0, found.start() - 1) : found.start()])
            if not before.isalnum() and before != b".":
                return found.group().split(b" ")[0].decode("ascii")
    return ""
