"""mallocng as an Allocator. It has groups of slots, which are described by metas in other
memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import add
from typing import Optional

from findleaks.allocators.base import Allocator, Arena, Cache, Heap, Problem, list_starts
from findleaks.allocators.images import find_images
from findleaks.allocators.memory import Memory
from findleaks.allocators.musl import ng_verify
from findleaks.allocators.musl.engine import GROUP, HEADER, UNIT
from findleaks.allocators.musl.groups import Groups, read_groups
from findleaks.allocators.musl.layout import AREA, CLASSES, Context, LocatedContext, Meta, contexts, number64
from findleaks.allocators.musl.slots import Slots
from findleaks.engine.contract import Blocks, Engine
from findleaks.target.base import Range, Target
from findleaks.target.ranges import nonzero_pieces

MAX_AREAS = 1 << 22


def find(target: Target, engine: Engine, secrets: Sequence[int]) -> list[Allocator]:
    """Find every mallocng that has one of these secrets."""
    memory, little = Memory(target), target.arch.byteorder == "little"
    found: dict[int, LocatedContext] = {}
    for image in find_images(target):
        for start, end in image.data:
            for piece in nonzero_pieces(target, start, end):
                for secret in secrets:
                    # The first word of the secret.
                    low = secret & target.arch.mask if little else secret >> (64 - 8 * memory.size)
                    for address in engine.search(piece, low, low + 1):
                        for layout in contexts(memory.size):
                            if address not in found and _is_context(memory, address, layout, secret):
                                found[address] = LocatedContext(image.name, address, layout, secret)
    return [MallocNG(target, engine, one) for _, one in sorted(found.items())]


def _is_context(memory: Memory, address: int, layout: Context, secret: int) -> bool:
    """Return whether init_done is 1, and both ends of the list of areas begin with the secret."""
    if memory.int32(address + layout.init_done) != 1:
        return False
    if layout.paged and memory.word(address + 8) not in (4096, 16384, 65536):
        return False
    ends = memory.words(address + layout.area_head, 2)
    if ends is None or any(end % AREA or not end for end in ends):
        return False
    return number64(memory, address) == secret and all(number64(memory, end) == secret for end in ends)


class MallocNG(Allocator):
    """One mallocng; see Allocator. Sizes are the requested ones, which malloc_usable_size returns.
    The rest of a slot belongs to no block."""

    name = "musl"
    remainder_words = 2
    retention_note = "musl returns wholly free memory by itself, and has no setting to return more"
    version = "mallocng"
    granule = UNIT

    def __init__(self, target: Target, engine: Engine, found: LocatedContext) -> None:
        self.target = target
        self.engine = engine
        self.memory = Memory(target)
        self.context = found
        self.where = found.where
        self.problems: list[Problem] = []
        self.meta = Meta(self.memory.size)
        self.areas = self._areas()
        self.groups: Groups = read_groups(self.memory, engine, self.areas, self.problems)
        self.slots = Slots(target, engine, self.groups, self.problems)
        self.checked: dict[str, int] = {}
        self._heaps: list[Heap] = []

    def _areas(self) -> list[int]:
        """Follow the list of meta_areas. Report the first invalid link."""
        layout, memory = self.context.layout, self.memory
        head, tail = memory.words(self.context.address + layout.area_head, 2) or (0, 0)
        found: dict[int, None] = {}
        area = head
        while area and len(found) < MAX_AREAS:
            if area in found or area % AREA or number64(memory, area) != self.context.secret:
                what = f"the list of meta_areas is broken at {area:#x}: metas beyond it, and their blocks, are not read"
                self.problems.append(Problem(next(reversed(found), area), what))
                break
            found[area] = None
            area = memory.word(area + 8) or 0
        if tail not in found and number64(memory, tail) == self.context.secret and tail % AREA == 0:
            found[tail] = None
        return list(found)

    def heaps(self) -> list[Heap]:
        """Return the heaps; adjacent groups form one heap (see Allocator)."""
        if not self._heaps:
            for batches in self.groups.tops():
                walk = partial(self.slots.walk, batches)
                self._heaps.append(Heap(batches[0].start, batches[-1].end, batches[0].label, walk))
        return self._heaps

    def mark_blocks(self, blocks: Blocks) -> None:
        """Compare the slots with the context's counts (see Allocator)."""
        # The context does not count groups in memory that the dynamic linker donated (donate.c).
        slots = {number: sums.slots for label, number, sums in self.groups.sums() if label == "main"}
        for number, counted in enumerate(self._usage()):
            if counted != slots.get(number, 0):
                which = f"usage_by_class[{number}] ({CLASSES[number] * UNIT - HEADER} bytes)"
                what = f"{which} is {counted:,}; its groups have {slots.get(number, 0):,} slots"
                address = self.context.address + self.context.layout.usage + number * self.memory.size
                self.problems.append(Problem(address, what, False))

    def _usage(self) -> tuple[int, ...]:
        return self.memory.words(self.context.address + self.context.layout.usage, len(CLASSES)) or ()

    def metadata(self) -> list[Range]:
        """Return the context, and every meta_area (see Allocator)."""
        address = self.context.address
        return [Range(address, address + self.context.layout.size), *(Range(area, area + AREA) for area in self.areas)]

    def summary(self) -> dict[str, object]:
        return {"groups": len(self.groups), "meta_areas": len(self.areas)}

    def locate(self, address: int) -> str:
        if self.context.address <= address < self.context.address + self.context.layout.size:
            return "__malloc_context"
        if address & -AREA in set(self.areas):
            number = (address % AREA - self.meta.first) // self.meta.size
            return f"meta {number} of the meta_area" if address % AREA >= self.meta.first else "meta_area header"
        group = self.groups.innermost(address)
        if group is None:
            return ""
        number = (address - group.storage) // group.stride
        if address < group.storage:
            return f"header of the group {group.mem:#x}"
        slot = f"slot {number} of the group {group.mem:#x}" if number < group.count else f"behind the slots of the group {group.mem:#x}"
        return slot + (f" ({group.usable} bytes each)" if group.number < len(CLASSES) else "")

    def caches(self, blocks: Blocks) -> list[Cache]:
        """Return a row for each class (see Allocator). The memory of a slot that contains a group
        is counted with that group."""
        found = []
        for label, number, sums in sorted(self.groups.sums(), key=lambda row: (row[1], row[0])):
            size = CLASSES[number] * UNIT - HEADER if number < len(CLASSES) else 0
            name = str(size) if size else "large"
            in_use = sums.slots - sums.free - sums.nested
            own = {"groups": sums.groups, "nested groups": sums.nested}
            found.append(Cache(label, name, size, in_use, 0, sums.free, sums.used, 0, sums.free_bytes, sums.memory, own=own))
        return found

    def arenas(self, blocks: Blocks) -> list[Arena]:
        """Return malloc's groups, the groups in memory that ld.so donated, and the blocks with
        separate mappings (see Allocator)."""
        rows: dict[str, list[int]] = {}
        for cache in self.caches(blocks):
            row = rows.setdefault(cache.arena, [0, 0, 0, 0])
            row[:] = map(add, row, (cache.in_use_bytes, cache.free_bytes, cache.memory, cache.own["groups"]))
        if "main" in rows:
            rows["main"][2] += AREA * len(self.areas)
        return [Arena(name, used, 0, free, mapped, {"groups": groups}) for name, (used, free, mapped, groups) in rows.items()]

    def read_counters(self) -> Mapping[str, int]:
        """Return the number of slots of each class, without those in donated memory (see
        Allocator)."""
        return {f"usage_by_class[{number}]": count for number, count in enumerate(self._usage()) if count}

    def blocks_in_flight(self, words: Sequence[int], blocks: Blocks) -> Iterator[int]:
        """Yield all blocks of a group to whose meta the thread has a pointer (see Allocator)."""
        records = self.groups.table.records
        metas = records[1::GROUP]
        for meta in set(words).intersection(metas):
            group = self.groups.one(metas.index(meta))
            yield from list_starts(blocks, group.mem, group.end)

    def verify(self, blocks: Blocks) -> Iterator[Optional[Problem]]:
        self.checked = {}
        return ng_verify.verify(self)
