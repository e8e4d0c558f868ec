"""One of Google's tcmallocs as an Allocator: its heaps, free lists, caches and metadata."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.allocators.base import Arena, Heap, Problem
from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.allocators.tcmalloc_google import caches, counts, integrity
from findleaks.allocators.tcmalloc_google.heap import GoogleHeap
from findleaks.allocators.tcmalloc_google.layout import HUGE_PAGE, LAYOUTS
from findleaks.allocators.tcmalloc_google.locate import Place, locate, size_classes
from findleaks.allocators.tcmalloc_google.lowlevel import region_records
from findleaks.allocators.tcmalloc_google.spans import Span, Spans, read_tree
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges, range_at

if TYPE_CHECKING:
    from findleaks.allocators.sites import Recording


GUARDED_PAGES = 128
"""Pages of the guarded page allocator (static_vars.cc, total_pages)."""


class GoogleTcmalloc(GoogleHeap):
    """One of Google's tcmallocs; see Allocator."""

    name = "google-tcmalloc"
    release_call = "MallocExtension::ReleaseMemoryToSystem(SIZE_MAX)"
    release_settings = ("MallocExtension::SetBackgroundReleaseRate, with a thread that runs ProcessBackgroundActions",)
    cache_setting = "MallocExtension::SetMaxPerCpuCacheSize"
    site_settings = ("MallocExtension::SetProfileSamplingInterval(1), as it starts, for all; else it samples once in 2 MiB",)

    def __init__(self, target: Target, engine: Engine, place: Place) -> None:
        super().__init__(target, engine, place)
        self.place = place
        self.version = f"{place.layout.page >> 10} KiB pages"
        self.thread_cache = place.layout.thread_cache
        self.tree, leaves = read_tree(self.memory, engine, place, self.problems)
        self.records = Spans(target, engine, place, self.tree, self.problems)
        self.spans = self.records.found
        self.ranges = self._regions(leaves)
        self.own = self._own_memory()
        self.region_records = region_records(self.memory, engine, place, self.ranges, self.own)
        self.found = caches.find(self.memory, engine, place, self.own, self.problems)
        self.threads = self.found.threads

    def _regions(self, leaves: Sequence[int]) -> list[Range]:
        """Return the memory of the page heap. This is the mappings with pages in the page map, and
        the mappings of whole huge pages that leaves of the page map cover. The latter are included
        because the page map has few entries for a mapping whose pages were all freed."""
        layout, found = self.place.layout, []
        reach = merge_ranges(Range(base, base + layout.reach) for base in leaves)
        for region in self.target.regions():
            if region.writable and region.readable and not region.name.startswith(("/", "[stack", "[heap")):
                at = bisect_left(self.tree.pages, region.start >> layout.shift)
                used = at < len(self.tree.pages) and self.tree.pages[at] << layout.shift < region.end
                if used or (region.start % HUGE_PAGE == 0 == region.end % HUGE_PAGE and range_at(reach, region.start)):
                    found.append(Range(region.start, region.end))
        return found

    def _own_memory(self) -> list[Range]:
        """Return the arena for descriptors (arena.h) as whole mappings. The arena has a separate
        address range (internal/memory_tag.h)."""
        known = sorted({*(node.start for node in self.tree.nodes), *self.records.addresses, *self.records.samples})
        found = []
        for region in self.target.regions():
            at = bisect_left(known, region.start)
            if region.writable and region.readable and at < len(known) and known[at] < region.end:
                if not range_at(self.ranges, region.start) and not range_at(self.place.image.data, region.start):
                    found.append(Range(region.start, region.end))
        return merge_ranges(found)

    def heap(self, part: Range) -> Heap:
        """Return the heap of one mapping."""

        def walk(blocks: Blocks) -> None:
            blocks.append_runs(self.records.runs(*part), bytes(self.records.data))

        return Heap(*part, "", walk)

    def mark_blocks(self, blocks: Blocks) -> None:
        self.free = self.records.free_lists(self.problems)
        self.mark(blocks, self.free, State.FREE, "a span's list of free blocks")
        self.held = self.found.held
        self.follow_caches([one for heap in self.threads for one in heap.lists])
        self.mark_cached(blocks, "a cache")
        self.mark(blocks, self.records.proxies, State.METADATA, "a sampled block")
        if self.records.guarded:
            what = f"{len(self.records.guarded):,} blocks have guard pages: the position of each in its page is not read"
            self.problems.append(Problem(self.records.guarded[0], what, False))
        counts.reconcile(self)

    def metadata(self) -> list[Range]:
        """Return the arena for descriptors, variables, which may contain stale pointers, and
        records of regions. The arena contains the descriptors of spans, the leaves of the page map,
        the slabs of CPUs, slots, samples, and thread caches."""
        return merge_ranges([*self.own, *self.region_records, *self.place.variables(), *self.found.variables])

    def list_reserved(self) -> list[Range]:
        """Return two kinds of address space without data. The page heap takes huge pages from the
        end of a region of 1 GiB. The rest of the region, below the heap, is reserved
        (system-alloc.cc, MmapRegion). Sampled blocks get GUARDED_PAGES pages with a guard page
        before, between and after them (guarded_page_allocator.cc, MapPages)."""
        guarded = (2 * GUARDED_PAGES + 1) * self.place.layout.page
        heaps = {part.start for part in self.ranges}
        return [
            Range(one.start, one.end)
            for one in self.target.regions()
            if one.private and not one.writable and (one.end - one.start == guarded or (one.end in heaps and not one.start % HUGE_PAGE))
        ]

    def summary(self) -> dict[str, object]:
        return {
            "spans": len(self.spans),
            "cpu_caches": len({held.owner for held in self.found.held if held.kind == "cpu"}),
            "thread_caches": len(self.threads),
            "page_size": self.place.layout.page,
        }

    def locate_pages(self, address: int, span: Optional[Span]) -> str:
        if span is not None:
            return f"span of one block at {span.start:#x}"
        if range_at(self.ranges, address):
            return "free pages of the page heap"
        cpus = self.found.cpus
        if cpus is not None and cpus.slabs <= address < cpus.slabs + self._cpus() * (1 << cpus.shift):
            return f"cache of CPU {address - cpus.slabs >> cpus.shift}"
        return ""

    def _cpus(self) -> int:
        """Return the number of CPUs whose caches contain blocks."""
        return max((held.owner + 1 for held in self.found.held if held.kind == "cpu"), default=0)

    def own_counts(self, size: int) -> dict[str, int]:
        return counts.of_size(self, size)

    def arenas(self, blocks: Blocks) -> list[Arena]:
        """Return the only arena, the page heap."""
        regions, own = (sum(end - start for start, end in ranges) for ranges in (self.ranges, self.own))
        spare = regions - sum(span.end - span.start for span in self.spans)
        return self.page_heap(blocks, regions + own, self.read_counters(), spare)

    @property
    def has_recordings(self) -> bool:
        return any(span.sampled for span in self.spans)

    def recordings(self, blocks: Blocks) -> list[Recording]:
        # Few commands need stacks.
        from findleaks.allocators.tcmalloc_google.sites import recordings

        return recordings(self, blocks)

    def read_counters(self) -> dict[str, int]:
        """Return totals by the names of MallocExtension's properties."""
        return counts.properties(self)

    def verify(self, blocks: Blocks) -> Iterator[Optional[Problem]]:
        return integrity.verify(self)


def allocators(target: Target, engine: Engine, places: Sequence[tuple[Image, int]]) -> list[GoogleTcmalloc]:
    """Return the tcmallocs whose class_to_size_ is at one of these addresses."""
    memory = Memory(target)
    found: list[GoogleTcmalloc] = []
    for image, table in places:
        for layout in LAYOUTS:
            sizes, pages = size_classes(target, layout, table)
            place = locate(memory, engine, image, layout, table, sizes, pages) if sizes else None
            if place is not None:
                found.append(GoogleTcmalloc(target, engine, place))
                break
    return found
