"""AddressSanitizer's allocator as an Allocator: size classes, large chunks, the quarantine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.asan import NAME, depot
from findleaks.allocators.asan.chunks import Damage, Large, Region, append_large, append_region, large
from findleaks.allocators.asan.depot import Depot
from findleaks.allocators.asan.fake_stacks import dead_frames
from findleaks.allocators.asan.layout import HEADER, REGION, SPACE
from findleaks.allocators.asan.locate import Found, locate, older
from findleaks.allocators.asan.shadow_memory import shadow
from findleaks.allocators.asan.sites import recordings
from findleaks.allocators.asan.thread_caches import caches
from findleaks.allocators.base import Allocator, Arena, Cache, Heap, Problem
from findleaks.allocators.mappings import MMAPPED, find_unclaimed
from findleaks.allocators.memory import Memory
from findleaks.allocators.sites import Recording
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State, Totals
from findleaks.target.arch import AARCH64
from findleaks.target.base import Range, Target
from findleaks.target.ranges import intersection

LARGE = "large"
OLD_HEADERS = "the chunk headers of LLVM 11, GCC 10 or older: its blocks are not read (supported: LLVM 12, GCC 11 and newer)"
SCATTERED = {AARCH64.name: "the allocator of LLVM 14, GCC 12 or older: its blocks are not read (supported: LLVM 16, GCC 14 and newer)"}
"""By architecture: older versions have SizeClassAllocator32, whose regions may be anywhere
(SANITIZER_CAN_USE_ALLOCATOR64 in sanitizer_common/sanitizer_platform.h)."""


# hwasan/hwasan_allocator.h, LLVM 18 (Metadata). HWAddressSanitizer is the only sanitizer with such
# an allocator that has tags in pointers.
WITH_TAGS = "an unsupported allocator, which stores sizes outside of the chunks: its blocks are not read"


class Unread(Allocator):
    """An AddressSanitizer with an unknown layout, or HWAddressSanitizer. It is reported, but not
    read."""

    version = "another layout"
    granule = HEADER

    def __init__(self, where: str, address: int, what: str, name: str = NAME) -> None:
        self.name = name
        self.where = where
        self.problems = [Problem(address, f"{name} in {where} has {what}", False)]

    def heaps(self) -> list[Heap]:
        return []


def make(target: Target, engine: Engine) -> list[Allocator]:
    """Return the AddressSanitizers of a process, of which there is usually one."""
    found: list[Allocator] = []
    for one in locate(target, engine):
        if one.beside:
            if target.tagged:
                found.append(Unread(one.image.name, one.address, WITH_TAGS, "HWAddressSanitizer"))
            continue
        known = not older(Memory(target), one.regions)
        found.append(Asan(target, engine, one) if known else Unread(one.image.name, one.address, OLD_HEADERS))
    start = shadow(target.arch).start
    if not found and target.arch.name in SCATTERED and any(region.start == start for region in target.regions()):
        found.append(Unread(target.exe_path or "the program", start, SCATTERED[target.arch.name]))
    return found


class Asan(Allocator):
    """One AddressSanitizer; see Allocator. Quarantined chunks are free."""

    name = NAME
    version = ""
    granule = HEADER
    release_call = "__sanitizer_purge_allocator()"
    release_settings = ("ASAN_OPTIONS=quarantine_size_mb=16:allocator_release_to_os_interval_ms=0 (both settings are needed)",)
    site_settings = ("ASAN_OPTIONS=malloc_context_size=30",)
    retention_note = "AddressSanitizer keeps freed blocks in a quarantine (256 MiB by default) to detect their use"

    def __init__(self, target: Target, engine: Engine, found: Found) -> None:
        self.target = target
        self.engine = engine
        self.memory = Memory(target)
        self.found = found
        self.where = found.image.name
        self.problems = found.problems
        self.shadow = shadow(target.arch)
        self.regions = found.regions
        headers = self.memory.words(found.headers.start, (found.headers.end - found.headers.start) // 8) or ()
        self.large = large(self.memory, headers, self.problems)
        self.damage = Damage(self.problems)
        self.quarantined: dict[str, int] = {}  # number of chunks by class, filled by `walk`
        self._heaps: list[Heap] = []

    def heaps(self) -> list[Heap]:
        if not self._heaps:
            self._heaps = [Heap(one.start, one.mapped, "", self._walk(one)) for one in self.regions]
            self._heaps += [Heap(one.start, one.end, MMAPPED, self._walk_large(one)) for one in self.large]
        return self._heaps

    def _walk(self, region: Region) -> Callable[[Blocks], None]:
        def run(blocks: Blocks) -> None:
            self.quarantined[str(region.chunk)] = append_region(self.memory, self.engine, region, blocks, self.damage)

        return run

    def _walk_large(self, one: Large) -> Callable[[Blocks], None]:
        def run(blocks: Blocks) -> None:
            self.quarantined[LARGE] = self.quarantined.get(LARGE, 0) + append_large(self.memory, one, blocks, self.damage)

        return run

    def mark_blocks(self, blocks: Blocks) -> None:
        self.damage.end()

    def metadata(self) -> list[Range]:
        """Return the records of classes, free arrays, the table of large chunks, the shadow, the
        stack depot, thread caches, and unused parts of fake stacks (see Allocator)."""
        mapped = [Range(region.start, region.end) for region in self.target.regions() if region.start < self.shadow.end]
        return [
            self.found.infos,
            *(region.free_array for region in self.regions),
            self.found.headers,
            *intersection([self.shadow], mapped),
            *self.own,
            *(self.depot.ranges() if self.depot is not None else ()),
        ]

    @cached_property
    def own(self) -> list[Range]:
        """The thread caches, and the parts of fake stacks that no frame uses."""
        heaps = [Range(heap.start, heap.end) for heap in self.heaps()]
        others = find_unclaimed(self.target, [*heaps, self.shadow])
        found = list(dead_frames(self.memory, self.engine, others))
        return [*found, *caches(self.memory, self.engine, [*others, *self.found.image.data])]

    @cached_property
    def depot(self) -> Optional[Depot]:
        """The stacks of allocations and frees; None if no depot is found."""
        return depot.find(self.memory, self.engine, self.found.image)

    def list_reserved(self) -> list[Range]:
        """Return the rest of the allocator's address range, and the gap in the shadow (see
        Allocator)."""
        return [Range(self.found.space, self.found.space + SPACE), self.shadow]

    def locate(self, address: int) -> str:
        region = self.region(address)
        if region is not None:
            if address in range(*region.free_array):
                return f"free array of the {region.chunk}-byte chunks"
            number = (address - region.start) // region.chunk
            return f"redzone of the {region.chunk}-byte chunk {region.start + number * region.chunk:#x}" if address < region.carved else ""
        if any(one.start <= address < one.end for one in self.large):
            return "redzone of a large chunk"
        if address in range(*self.found.infos):
            return "records of the size classes"
        return "shadow" if address in range(*self.shadow) else ""

    def region(self, address: int) -> Optional[Region]:
        """Return the size class that contains `address`, or None."""
        number = (address - self.found.space) // REGION if address >= self.found.space else -1
        return self._by_number.get(number)

    @cached_property
    def _by_number(self) -> dict[int, Region]:
        return {region.number: region for region in self.regions}

    def class_of(self, address: int) -> str:
        region = self.region(address)
        return str(region.chunk) if region is not None else LARGE

    @property
    def has_recordings(self) -> bool:
        return self.depot is not None

    def recordings(self, blocks: Blocks) -> Sequence[Recording]:
        if self.depot is None:
            return ()
        return recordings(self.memory, self.engine, self.depot, self.regions, self.large, self.found.image)

    def caches(self, blocks: Blocks) -> list[Cache]:
        """Return a row for each class (see Allocator). A class is named by the size of its chunks,
        because the sizes of its blocks vary."""
        rows = [self._cache(blocks, str(region.chunk), [Range(region.start, region.mapped)]) for region in self.regions]
        rows.append(self._cache(blocks, LARGE, [Range(one.start, one.end) for one in self.large]))
        return [row for row in rows if row.total]

    def _cache(self, blocks: Blocks, name: str, parts: Sequence[Range]) -> Cache:
        used, cached, free = (
            Totals.sum_of(blocks.totals(state, *part) for part in parts) for state in (State.IN_USE, State.CACHED, State.FREE)
        )
        memory = sum(end - start for start, end in parts)
        counts = (used.blocks, cached.blocks, free.blocks, used.bytes, cached.bytes, free.bytes)
        return Cache("", name, 0, *counts, memory, own={"quarantined": self.quarantined.get(name, 0)})

    def arenas(self, blocks: Blocks) -> list[Arena]:
        rows = self.caches(blocks)
        mapped = sum(heap.end - heap.start for heap in self.heaps()) + sum(
            end - start for start, end in (r.free_array for r in self.regions)
        )
        spare = sum(region.mapped - region.carved for region in self.regions)
        return [
            Arena(
                "",
                sum(r.in_use_bytes for r in rows),
                sum(r.cached_bytes for r in rows),
                sum(r.free_bytes for r in rows),
                mapped,
                spare=spare,
            )
        ]

    def summary(self) -> dict[str, object]:
        return {"quarantined": sum(self.quarantined.values()), "large": len(self.large)}
