"""All lookaside buffers of one copy of the SQLite library, as an Allocator."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial
from typing import Optional

from findleaks.allocators.base import Allocator, Arena, Heap, Problem
from findleaks.allocators.free_lists import follow_free_list
from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.allocators.sqlite.lookaside import SMALL, Buffer
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State, run_states
from findleaks.target.base import Target

_USED = run_states(State.IN_USE, State.IN_USE)


class LookasideBuffers(Allocator):
    """Lookaside buffers. See Allocator. `image` is the file that contains SQLite."""

    name = "sqlite-lookaside"
    version = ""
    nested = True
    granule = 8
    retention_note = "SQLite frees the buffer of a connection when the connection is closed"

    def __init__(self, target: Target, image: Image, buffers: Sequence[Buffer]) -> None:
        self.where, self.buffers, self.memory = image.name, buffers, Memory(target)
        self.problems: list[Problem] = []
        self._heaps = [Heap(one.start, one.end, f"connection {one.address:#x}", partial(self._walk, one)) for one in buffers]

    def _walk(self, one: Buffer, blocks: Blocks) -> None:
        for start, end, size in ((one.start, one.middle, one.size), (one.middle, one.end, SMALL)):
            if start < end:
                blocks.append_runs(array("Q", [start, size, size, (end - start) // size, 0, _USED]))

    def heaps(self) -> Sequence[Heap]:
        return self._heaps

    def mark_blocks(self, blocks: Blocks) -> None:
        for one in self.buffers:
            blocks.set_state(array("Q", sorted(self._list_free(one))), State.FREE)

    def _list_free(self, one: Buffer) -> set[int]:
        """Return the free slots of a buffer."""
        found: set[int] = set()
        for number, head in enumerate(one.heads):
            slots = range(one.start, one.middle, one.size) if number < 2 else range(one.middle, one.end, SMALL)
            wrong = follow_free_list(self.memory, head, 0, partial(_slot_at, slots), found)
            if wrong:
                what = f"a list of free slots of SQLite's connection {one.address:#x} leads to {wrong:#x}, which is not a free slot"
                self.problems.append(Problem(wrong, f"{what}: further slots count as in use"))
        return found

    def summary(self) -> dict[str, object]:
        return {"connections": len(self.buffers), "reconciled": not self.problems}

    def arenas(self, blocks: Blocks) -> list[Arena]:
        """Return a row for each connection, with the number that
        sqlite3_db_status(SQLITE_DBSTATUS_LOOKASIDE_USED) returns."""
        rows = []
        for heap in self._heaps:
            used, free = (blocks.totals(state, heap.start, heap.end) for state in (State.IN_USE, State.FREE))
            own = {"LOOKASIDE_USED": used.blocks}
            rows.append(Arena(heap.arena, used.bytes, 0, free.bytes, heap.end - heap.start, own))
        return rows


def _slot_at(slots: range, address: int) -> Optional[int]:
    return address if address in slots else None
