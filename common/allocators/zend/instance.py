"""One heap of Zend's memory manager as an Allocator."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.base import Allocator, Arena, Cache, Heap, Problem, Spare, add_first_problems, count_by_size
from findleaks.allocators.bulk import follow_lists
from findleaks.allocators.images import find_version
from findleaks.allocators.memory import Memory
from findleaks.allocators.zend.layout import CHUNK, PAGE, PEAK, SIZE, SIZES, Chunk, Chunks, Place
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State, run_states
from findleaks.target.base import Module, Range, Target

_VERSION = re.compile(rb"X-Powered-By: PHP/(\d+\.\d+\.\d+)")  # main/main.c: expose_php
_USED = run_states(State.IN_USE, State.IN_USE)


class ZendHeap(Allocator):
    """One heap. See Allocator. `module` is the file that contains PHP."""

    name = "zend-mm"
    granule = 8
    managed = True
    release_call = "gc_mem_caches()"
    retention_note = "PHP keeps chunks that it used in former requests, and a chunk as long as one block in it is in use"

    def __init__(self, target: Target, engine: Engine, module: Module, place: Place) -> None:
        self.target, self.engine, self.module, self.place = target, engine, module, place
        self.where = module.path.rsplit("/", 1)[-1]
        self.memory = Memory(target)
        self.chunks = Chunks(target, place)
        self.problems = [Problem(address, what) for address, what in self.chunks.problems]
        self.slots: Sequence[int] = self.chunks.words[place.free_slot : place.free_slot + len(SIZES)]
        self._heaps = [self._chunk_heap(chunk) for chunk in self.chunks.in_use]
        self._heaps += [_empty_heap(start) for start in self.chunks.cached]
        self._heaps += [_huge_heap(huge.start, huge.size) for huge in self.chunks.huge]

    @cached_property
    def version(self) -> str:  # type: ignore[override]
        """PHP's version, or ""."""
        return find_version(self.target, self.module, _VERSION)

    def _chunk_heap(self, chunk: Chunk) -> Heap:
        for page in chunk.bad[:1]:
            what = f"PHP's chunk {chunk.start:#x} has an invalid entry for its page {page}"
            self.problems.append(Problem(chunk.start + page * PAGE, f"{what}: the blocks of {len(chunk.bad)} pages are unknown"))

        def walk(blocks: Blocks) -> None:
            runs = array("Q")
            for run in chunk.runs:
                runs.extend((chunk.start + run.page * PAGE, run.size, run.size, run.blocks, 0, _USED))
            blocks.append_runs(runs)

        foreign = [Range(chunk.start + page * PAGE, chunk.start + (page + 1) * PAGE) for page in chunk.bad]
        return Heap(chunk.start, chunk.start + CHUNK, "chunks", walk, [Range(chunk.start, chunk.start + PAGE)], foreign)

    def heaps(self) -> Sequence[Heap]:
        return self._heaps

    def mark_blocks(self, blocks: Blocks) -> None:
        capacity = sum(run.blocks for chunk in self.chunks.in_use for run in chunk.runs)
        ranges = sorted(Range(chunk.start, chunk.start + CHUNK) for chunk in self.chunks.in_use)
        lists = follow_lists(self.target, self.engine, ranges, self.slots, capacity + 1, capacity)
        for number, why in lists.problems:
            what = f"PHP's list of free blocks of {SIZES[number]} bytes is damaged, {why}: further ones count as in use"
            self.problems.append(Problem(self.slots[number], what))
        indices, sizes = blocks.find_all(lists.nodes)
        wrong: list[int] = []
        begin = 0
        for size, end in zip(SIZES, lists.ends):
            some = zip(lists.nodes[begin:end], indices[begin:end], sizes[begin:end])
            wrong += [node for node, index, found in some if found != size or blocks.address(index) != node]
            begin = end
        what = "PHP's lists of free blocks have {:#x}, where no block of this size begins"
        add_first_problems(
            self.problems, (Problem(node, what.format(node)) for node in wrong), "wrong entries in PHP's lists of free blocks"
        )
        blocks.set_state(array("Q", sorted(set(lists.nodes) - set(wrong))), State.FREE)
        lost = blocks.set_state(array("Q", sorted(huge.node for huge in self.chunks.huge)), State.METADATA)
        what = "PHP's list of huge blocks has an entry at {:#x}, where no block begins"
        add_first_problems(self.problems, (Problem(node, what.format(node)) for node in lost), "wrong entries in PHP's list of huge blocks")
        self._compare(blocks)

    def _compare(self, blocks: Blocks) -> None:
        """Compare the bytes in use that PHP counts with the blocks in use."""
        found = self._total(blocks, State.IN_USE) + self._total(blocks, State.METADATA)
        counted = self.chunks.words[SIZE]
        if found != counted:
            what = f"PHP counts {counted:,} bytes in use; {found:,} were found"
            self.problems.append(Problem(self.place.address, what, False))

    def summary(self) -> dict[str, object]:
        return {
            "chunks": len(self.chunks.in_use),
            "cached_chunks": len(self.chunks.cached),
            "huge_blocks": len(self.chunks.huge),
            "reconciled": not self.problems,
        }

    def locate(self, address: int) -> str:
        start = address & -CHUNK
        if start in self.chunks.cached:
            return "cached chunk of PHP"
        if not any(chunk.start == start for chunk in self.chunks.in_use):
            return ""
        return "header of a chunk of PHP" if address < start + PAGE else "free pages of a chunk of PHP"

    # ---- statistics ----

    def caches(self, blocks: Blocks) -> list[Cache]:
        """Return the size classes: bins, and large and huge blocks of each size."""
        memory: Counter[int] = Counter()
        for chunk in self.chunks.in_use:
            for run in chunk.runs:
                memory[run.size] += run.pages * PAGE
        found: dict[int, Cache] = {}
        for one in count_by_size(self.name, self._heaps, blocks):
            before = found.get(one.size)
            if before is None:
                found[one.size] = one._replace(arena="", memory=memory[one.size] or one.memory)
            else:
                found[one.size] = before._replace(in_use=before.in_use + one.in_use, in_use_bytes=before.in_use_bytes + one.in_use_bytes)
        return [found[size] for size in sorted(found)]

    def arenas(self, blocks: Blocks) -> list[Arena]:
        totals = {state: self._total(blocks, state) for state in (State.IN_USE, State.FREE)}
        spare = sum(one.end - one.start for one in self.spare(blocks))
        mapped = sum(heap.end - heap.start for heap in self._heaps)
        return [Arena("heap", totals[State.IN_USE], 0, totals[State.FREE], mapped, self.read_counters(), spare)]

    def _total(self, blocks: Blocks, state: State) -> int:
        return sum(blocks.totals(state, heap.start, heap.end).bytes for heap in self._heaps)

    def spare(self, blocks: Blocks) -> Sequence[Spare]:
        cached = set(self.chunks.cached)
        return [one._replace(sort="cached chunks") if one.start & -CHUNK in cached else one for one in super().spare(blocks)]

    def read_counters(self) -> Mapping[str, int]:
        """Return the results of PHP's functions, and the counters of chunks by PHP's names."""
        words, at = self.chunks.words, self.place.free_slot + len(SIZES)
        counts = self.memory.members(self.place.address + (self.place.main + 2) * self.memory.size, "III") or (0, 0, 0)
        return {
            "memory_get_usage()": words[SIZE],
            "memory_get_usage(true)": words[at],
            "memory_get_peak_usage()": words[PEAK],
            "memory_get_peak_usage(true)": words[at + 1],
            "memory_limit": words[at + 2],
            **dict(zip(("chunks_count", "peak_chunks_count", "cached_chunks_count"), counts)),
        }

    def verify(self, blocks: Blocks) -> Iterator[Optional[Problem]]:
        from findleaks.allocators.zend.verify import verify

        checked = {"chunks": len(self.chunks.in_use), "page maps": len(self.chunks.in_use)}
        self.checked = checked
        return verify(self.memory, self.place, self.chunks, self.read_counters(), blocks, checked)


def _empty_heap(start: int) -> Heap:
    return Heap(start, start + CHUNK, "cached chunks", lambda blocks: None, [Range(start, start + PAGE)])


def _huge_heap(start: int, size: int) -> Heap:
    return Heap(start, start + size, "huge blocks", lambda blocks: blocks.append([start], [size], [State.IN_USE]))
