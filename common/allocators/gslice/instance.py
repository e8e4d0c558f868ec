"""One GSlice: its slabs as heaps, and the states of their chunks."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence

from findleaks.allocators.base import Allocator, Heap, Problem
from findleaks.allocators.gslice.slabs import Place, Slab, cached_chunks, read_slabs, vote_on_starts
from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State, run_states
from findleaks.target.base import Range, Target

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
        self.slabs, trouble = read_slabs(self.memory, place)
        if trouble:
            self.problems.append(Problem(place.address, trouble, False))
        self.cached, self.own = cached_chunks(target, self.memory, place)
        starts = self._starts()
        self._heaps = [self._heap(slab, starts.get(slab.start, 0)) for slab in self.slabs]

    def _starts(self) -> dict[int, int]:
        """Return the offset of the first chunk of each slab for which it is known."""
        unit = self.granule
        found: dict[int, int] = {}
        by_page = {slab.start: slab for slab in self.slabs}
        for slab in self.slabs:
            if slab.free:
                found[slab.start] = (slab.free[0] - slab.start) % slab.chunk
        for page in {slab.page for slab in self.slabs}:
            for chunk in self.cached:
                owner = by_page.get(chunk & -page)
                if owner is not None and owner.page == page:
                    found.setdefault(owner.start, (chunk - owner.start) % owner.chunk)
        unknown = [slab for slab in self.slabs if slab.spare > unit and slab.start not in found]
        found.update(vote_on_starts(self.target, self.engine, unknown, unit))
        return {start: shift for start, shift in found.items() if shift < by_page[start].spare and shift % unit == 0}

    def _heap(self, slab: Slab, shift: int) -> Heap:
        def walk(blocks: Blocks) -> None:
            runs = array("Q", [slab.start + shift, slab.chunk, slab.chunk, slab.chunks, 0, run_states(State.IN_USE, State.IN_USE)])
            blocks.append_runs(runs)

        end = slab.info + 4 * self.target.arch.word
        return Heap(slab.start, end, "slabs", walk, [Range(slab.info, end)])

    def heaps(self) -> Sequence[Heap]:
        return self._heaps

    def mark_blocks(self, blocks: Blocks) -> None:
        free = array("Q", sorted({chunk for slab in self.slabs for chunk in slab.free}))
        unknown = [*blocks.set_state(free, State.FREE), *blocks.set_state(array("Q", sorted(set(self.cached))), State.CACHED)]
        if unknown:
            what = f"GSlice's lists have {len(unknown):,} free chunks where no chunk begins; the first is {unknown[0]:#x}"
            self.problems.append(Problem(unknown[0], what))
        arrays = {self.place.magazines, self.place.contention, self.place.stack, *self.own}
        blocks.set_state(array("Q", sorted(arrays)), State.METADATA)

    def metadata(self) -> list[Range]:
        return [Range(self.place.address, self.place.address + self.place.size)]

    def summary(self) -> dict[str, object]:
        return {"slabs": len(self.slabs), "reconciled": not self.problems}

    def locate(self, address: int) -> str:
        if self.place.address <= address < self.place.address + self.place.size:
            return "GSlice's variables"
        inside = any(heap.metadata[0].start <= address < heap.metadata[0].end for heap in self._heaps)
        return "the end of a slab, where its list of free chunks is" if inside else ""
