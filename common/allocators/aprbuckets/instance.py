"""All bucket allocators of a process as an Allocator."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from functools import partial

from findleaks.allocators.aprbuckets.buckets import HEADER, BucketList, Node
from findleaks.allocators.base import Allocator, Heap, Problem
from findleaks.allocators.free_lists import follow_free_list
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State, run_states
from findleaks.target.base import Module, Target

_USED = run_states(State.IN_USE, State.IN_USE)
_NEXT = 24  # offset of `next` in the header of a block


class BucketAllocators(Allocator):
    """Bucket allocators. See Allocator. `module` is libaprutil."""

    name = "apr-buckets"
    version = ""
    nested = True
    granule = 8
    retention_note = "a bucket allocator returns its memory when its pool is cleared or destroyed"

    def __init__(self, target: Target, module: Module, lists: Sequence[BucketList]) -> None:
        self.where, self.lists, self.memory = os.path.basename(module.path), lists, Memory(target)
        self.problems: list[Problem] = []
        self._heaps = [
            Heap(node.start, node.end, f"bucket allocator {one.address:#x}", partial(self._walk, node))
            for one in lists
            for node in one.nodes
        ]

    def _walk(self, node: Node, blocks: Blocks) -> None:
        blocks.append_runs(array("Q", [node.first + HEADER, node.size, node.size - HEADER, node.blocks, 0, _USED]))

    def heaps(self) -> Sequence[Heap]:
        return self._heaps

    def mark_blocks(self, blocks: Blocks) -> None:
        for one in self.lists:
            blocks.set_state(array("Q", sorted(self._list_free(one))), State.FREE)

    def _list_free(self, one: BucketList) -> set[int]:
        """Return the free blocks of a bucket allocator."""
        places = {node.first + HEADER + node.size * number for node in one.nodes for number in range(node.blocks)}
        found: set[int] = set()
        wrong = follow_free_list(self.memory, one.free, _NEXT, lambda at: at + HEADER if at + HEADER in places else None, found)
        if wrong:
            what = f"the list of free blocks of the bucket allocator {one.address:#x} leads to {wrong:#x}, which is not a free block"
            self.problems.append(Problem(wrong, f"{what}: further blocks count as in use"))
        return found

    def summary(self) -> dict[str, object]:
        return {"bucket_allocators": len(self.lists), "reconciled": not self.problems}
