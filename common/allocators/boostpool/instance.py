"""All pools of Boost.Pool in a process as an Allocator."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial

from findleaks.allocators.base import Allocator, Heap, Problem
from findleaks.allocators.boostpool.pools import Pool
from findleaks.allocators.bulk import follow_lists
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State, run_states
from findleaks.target.base import Range, Target
from findleaks.target.program import program_name

_USED = run_states(State.IN_USE, State.IN_USE)
_LONGEST = 60  # most characters of the name of a pool


class BoostPools(Allocator):
    """Pools of Boost.Pool. See Allocator."""

    name = "boost::pool"
    version = ""
    nested = True
    granule = 8
    retention_note = "a boost::pool frees its blocks when it is destroyed; purge_memory() frees them before, with all chunks"

    def __init__(self, target: Target, engine: Engine, pools: Sequence[Pool]) -> None:
        self.where, self.pools, self._target, self._engine = program_name(target), pools, target, engine
        self.problems: list[Problem] = []
        self._labels = {one.address: self._label(one) for one in pools}
        self._heaps = [
            Heap(part.start, part.end, self._labels[one.address], partial(self._walk, one, part)) for one in pools for part in one.blocks
        ]

    def _label(self, one: Pool) -> str:
        symbol = self._target.symbolize(one.address)
        name = symbol.name.removesuffix("::storage")[:_LONGEST] if symbol is not None else f"{one.address:#x}"
        return f"pool {name}"

    def _walk(self, one: Pool, part: Range, blocks: Blocks) -> None:
        blocks.append_runs(array("Q", [part.start, one.chunk, one.chunk, (part.end - part.start) // one.chunk, 0, _USED]))

    def heaps(self) -> Sequence[Heap]:
        return self._heaps

    def mark_blocks(self, blocks: Blocks) -> None:
        for one in self.pools:
            chunks = sum(part.end - part.start for part in one.blocks) // one.chunk
            lists = follow_lists(self._target, self._engine, one.blocks, [one.first] if one.first else [], chunks, chunks)
            wrong = blocks.set_state(sorted(lists.nodes), State.FREE)
            reasons = [why for _, why in lists.problems] + [f"no chunk begins at {at:#x}" for at in wrong[:1]]
            for why in reasons:
                what = f"the list of free chunks of the boost::pool at {one.address:#x} is damaged: {why}"
                self.problems.append(Problem(one.address, f"{what}; further chunks count as in use"))

    def bookkeeping(self) -> Sequence[Range]:
        """Return `first` and `list.ptr` of each pool: the latter is also the address of a chunk."""
        return [Range(one.address, one.address + 16) for one in self.pools]

    def note(self) -> str:
        what = "chunks of a boost::pool may be arrays, whose lengths it does not record"
        return f"{what}. A leaked chunk that follows another one in use is only possibly lost."

    def possible_arrays(self, blocks: Blocks) -> Sequence[int]:
        """Return the chunks in use that follow another one in use: ordered_malloc(n) and the
        allocators hand out arrays of chunks, and do not record their lengths."""
        found: list[int] = []
        for heap in self._heaps:
            low, high = blocks.at_or_after(heap.start), blocks.at_or_after(heap.end)
            pairs = bytes((State.IN_USE, State.IN_USE))
            states = bytes(blocks.columns(low, high).state)
            at = states.find(pairs)
            while at >= 0:
                found.append(low + at + 1)
                at = states.find(pairs, at + 1)
        return found

    def summary(self) -> dict[str, object]:
        return {"pools": len(self.pools), "reconciled": not self.problems}
