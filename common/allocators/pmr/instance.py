"""All pool resources of one libstdc++ as an Allocator."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Optional

from findleaks.allocators.base import Allocator, Heap, Problem, add_first_problems
from findleaks.allocators.memory import Memory
from findleaks.allocators.pmr.nested import find_former_records
from findleaks.allocators.pmr.resources import Chunk, Resource
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State, run_states
from findleaks.formatting import size
from findleaks.target.base import Module, Range, Target
from findleaks.target.ranges import find_overlaps, merge_ranges, subtract

_VERSION = re.compile(r"\.so\.([0-9.]+)$")
_STATES = run_states(State.FREE, State.IN_USE)


class PoolResources(Allocator):
    """Pool resources. See Allocator. `module` is libstdc++."""

    name = "std::pmr"
    nested = True
    granule = 8
    release_call = "release()"
    retention_note = "a pool resource returns its chunks when it is destroyed, or when its function release() is called"

    def __init__(self, target: Target, module: Module, resources: Sequence[Resource], blocks: Blocks, engine: Engine) -> None:
        self.target, self.memory, self.resources, self._engine = target, Memory(target), resources, engine
        self.where = module.path.rsplit("/", 1)[-1]
        version = _VERSION.search(self.where)
        self.version = version[1] if version is not None else ""
        self.problems: list[Problem] = []
        what = "the record at {:#x} of a chunk of a pool resource is impossible: the chunk is not divided"
        damaged = sorted(place for one in resources for place in one.damaged)
        add_first_problems(self.problems, (Problem(at, what.format(at)) for at in damaged), "impossible records of chunks")
        self._undivided = sum(one.undivided for one in resources)
        self.chunks: list[Chunk] = []
        self._heaps: list[Heap] = []
        self._tables: list[Range] = []
        for resource, chunk in sorted(((one, chunk) for one in resources for chunk in one.chunks), key=lambda pair: pair[1]):
            # A chunk belongs to one resource, even if a damaged resource claims it, too.
            if not self.chunks or chunk.start >= self.chunks[-1].end:
                self.chunks.append(chunk)
                self._heaps.append(self._heap(resource, chunk))
            else:
                self._undivided += chunk.end - chunk.start
        self._add_inner(blocks, [one for one in resources if one.inner])

    def _add_inner(self, blocks: Blocks, resources: Sequence[Resource]) -> None:
        """Add the chunks that are parts of the memory of other resources.

        If a chunk is a part of a block of malloc, the whole block becomes a heap. The memory beside
        the chunks stays root memory (`foreign`), except the arrays in which resources list chunks,
        and memory that was not used yet."""
        around: dict[Range, list[tuple[Chunk, Resource]]] = {}
        upstreams: dict[int, list[Resource]] = {}
        last = 0
        for chunk, one in sorted(((chunk, its) for its in resources for chunk in its.inner), key=lambda pair: pair[0]):
            if chunk.start < last:  # a damaged resource, or one that was dropped, claims it, too
                self._undivided += chunk.end - chunk.start
                continue
            last = chunk.end
            block = blocks.lookup(chunk.start) if not one.depth else None
            place = Range(chunk.start, chunk.end) if block is None else Range(block[1], block[1] + block[2])
            around.setdefault(place, []).append((chunk, one))
            self.chunks.append(chunk)
        # The end of the array of larger blocks may be the address of the next block.
        tables = {one.members for one in resources}
        for one in resources:
            if not one.depth:
                upstreams.setdefault(one.upstream, []).append(one)
                tables.update(table for table in one.tables if table.start < table.end)
        for some in upstreams.values():
            tables.update(self._find_former_records(blocks, some))
        self._tables = merge_ranges(tables)
        taken = merge_ranges(
            [*self._tables, *(part for one in resources for part in one.unused), *(Range(*one[:2]) for one in self.chunks)]
        )
        starts = [part.start for part in taken]
        for (start, end), rows in around.items():
            owners = {one.address for _, one in rows}
            owner = self._name(rows[0][1]) if len(owners) == 1 else f"{len(owners)} pool resources at {start:#x}"
            chunks = [chunk for chunk, _ in rows]
            bitmaps = [Range(chunk.bits, chunk.end) for chunk in chunks if chunk.bits < chunk.end]
            foreign = subtract([Range(start, end)], [Range(low, high) for _, low, high in find_overlaps(taken, starts, start, end)])
            self._heaps.append(Heap(start, end, owner, partial(self._walk_all, chunks), bitmaps, foreign))
        self.chunks.sort()

    def _find_former_records(self, blocks: Blocks, resources: Sequence[Resource]) -> Iterator[Range]:
        """Yield the records of chunks in a monotonic_buffer_resource. `resources`: its
        pool resources."""
        chunks = [chunk for one in resources for chunk in one.inner]
        places = (blocks.lookup(chunk.start) for chunk in chunks)
        memory = merge_ranges(
            [*(Range(one[1], one[1] + one[2]) for one in places if one is not None), *(one.buffer for one in resources if one.buffer)]
        )
        return find_former_records(self._engine, self.memory, chunks, memory)

    def _walk_all(self, chunks: Sequence[Chunk], blocks: Blocks) -> None:
        for chunk in chunks:
            self._walk(chunk, blocks)

    def metadata(self) -> Sequence[Range]:
        return self._tables

    def _heap(self, resource: Resource, chunk: Chunk) -> Heap:
        owner = self._name(resource)
        return Heap(chunk.start, chunk.end, owner, partial(self._walk, chunk), [Range(chunk.bits, chunk.end)])

    def _name(self, resource: Resource) -> str:
        """Return the name of a resource: its kind, and the variable that it is, or its address."""
        symbol = self.target.symbolize(resource.address)
        return f"{resource.kind} {symbol.name if symbol is not None else hex(resource.address)}"

    def _walk(self, chunk: Chunk, blocks: Blocks) -> None:
        bits = self.memory.read(chunk.bits, chunk.end - chunk.bits)
        if not bits and chunk.bits < chunk.end:
            self.problems.append(Problem(chunk.bits, f"the bitmap of the chunk {chunk.start:#x} is unreadable: its blocks count as in use"))
        states = _STATES if bits else run_states(State.IN_USE, State.IN_USE)
        blocks.append_runs(array("Q", [chunk.start, chunk.size, chunk.size, chunk.blocks, 0, states]), bits)

    def heaps(self) -> Sequence[Heap]:
        return self._heaps

    def mark_blocks(self, blocks: Blocks) -> None:
        """Mark the arrays of chunks, because the address of a chunk is that of its first block."""
        blocks.set_state(array("Q", sorted({start for one in self.resources for start in one.arrays})), State.METADATA)

    def summary(self) -> dict[str, object]:
        return {"resources": len(self.resources), "chunks": len(self.chunks), "reconciled": not self.problems}

    def note(self) -> str:
        what = f"findleaks does not divide {size(self._undivided)} of pool resources, which are in memory resources that it cannot read"
        return f"{what}. Leaks inside them are not reported." if self._undivided else ""

    def locate(self, address: int) -> str:
        at = bisect_right([chunk.start for chunk in self.chunks], address) - 1
        return "bitmap of a chunk" if at >= 0 and self.chunks[at].bits <= address < self.chunks[at].end else ""

    def verify(self, blocks: Blocks) -> Iterator[Optional[Problem]]:
        """Check that the bits after the last block of each chunk are set."""
        for chunk in self.chunks:
            last = self.memory.word(chunk.end - 8) or 0
            extra = chunk.blocks % 64
            if chunk.bits < chunk.end and extra and last >> extra != (1 << 64 - extra) - 1:
                yield Problem(chunk.end - 8, f"the bitmap of the chunk {chunk.start:#x} marks blocks as free that do not exist")
        self.checked = {"chunks": len(self.chunks)}
        yield None
