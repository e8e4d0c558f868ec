"""One GSlice: its slabs as heaps, and the states of their chunks."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence

from findleaks.allocators.base import Allocator, Heap, Problem, Spare, add_first_problems
from findleaks.allocators.gslice.engine import read_magazines
from findleaks.allocators.gslice.slabs import Place, find_magazines, find_starts, read_all_slabs
from findleaks.allocators.heaps import SlabHeap
from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import RUN, State
from findleaks.target.base import Piece, Range, Target

_VERSION = re.compile(r"\.so\.0\.(\d+)(\d\d)\.(\d+)$")  # libglib-2.0.so.0.7400.6: 2.74.6


class GSlice(Allocator):
    """The slice allocator of one loaded GLib. See Allocator."""

    name = "GSlice"
    nested = True
    retention_note = "GSlice frees a slab when no chunk in it is in use, and keeps free chunks in magazines"

    def __init__(self, target: Target, engine: Engine, image: Image, place: Place) -> None:
        self.target, self.engine, self.place = target, engine, place
        self.where = image.name
        version = _VERSION.search(image.name)
        self.version = f"2.{int(version[1])}.{version[3]}" if version else ""
        self.memory = Memory(target)
        self.granule = 2 * target.arch.word
        self.problems: list[Problem] = []
        self._slabs, pieces, trouble = read_all_slabs(target, engine, self.memory, place)
        if trouble:
            self.problems.append(Problem(place.address, trouble, False))
        self._cached, self.own = self._read_magazines(pieces)
        find_starts(target, engine, self._slabs, self._cached)
        slabs, runs = self._slabs.ranges, self._slabs.runs
        self._heaps = [SlabHeap.of("slabs", slabs, runs, is_checked=True)] if slabs else []

    def _read_magazines(self, pieces: Sequence[Piece]) -> tuple[array[int], list[int]]:
        """Return the free chunks in all magazines, and the addresses of the threads' arrays of
        magazines."""
        place, most = self.place, sum(self._slabs.runs[3::RUN])
        heads, own = find_magazines(self.target, self.memory, place)
        if not most:
            return array("Q"), own
        rings = [head for head in self.memory.words(place.magazines, place.classes) or () if head]
        found, troubles = read_magazines(self.engine, pieces, heads, rings, most)
        what = "a magazine of GSlice is damaged at {:#x}, {}: further free chunks of it count as in use"
        add_first_problems(self.problems, (Problem(head, what.format(head, why)) for head, why in troubles), "damaged magazines of GSlice")
        return found, own

    def heaps(self) -> Sequence[Heap]:
        return self._heaps

    def mark_blocks(self, blocks: Blocks) -> None:
        unknown = [*blocks.set_state(self._slabs.free, State.FREE), *blocks.set_state(self._cached, State.CACHED)]
        if unknown:
            what = f"GSlice's lists have {len(unknown):,} free chunks where no chunk begins; the first is {min(unknown):#x}"
            self.problems.append(Problem(min(unknown), what))
        arrays = {self.place.magazines, self.place.contention, self.place.stack, *self.own}
        blocks.set_state(array("Q", sorted(arrays)), State.METADATA)

    def spare(self, blocks: Blocks) -> Sequence[Spare]:
        return ()

    def metadata(self) -> list[Range]:
        return [Range(self.place.address, self.place.address + self.place.size)]

    def summary(self) -> dict[str, object]:
        return {"slabs": len(self._slabs.ranges) // 2, "reconciled": not self.problems}

    def locate(self, address: int) -> str:
        if self.place.address <= address < self.place.address + self.place.size:
            return "GSlice's variables"
        at = self._heaps[0].slab_at(address) if self._heaps else -1
        inside = at >= 0 and address >= self._heaps[0].slabs[2 * at + 1] - 4 * self.target.arch.word
        return "the end of a slab, where its list of free chunks is" if inside else ""
