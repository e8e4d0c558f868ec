"""One of Google's tcmallocs as an Allocator: its heaps, free lists, caches and own memory."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.base import Allocator, Arena, Cache, Heap, Problem, ThreadCache, starts
from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.allocators.tcmalloc_google import caches, counts, integrity
from findleaks.allocators.tcmalloc_google.caches import Held
from findleaks.allocators.tcmalloc_google.layout import HUGE_PAGE, LAYOUTS
from findleaks.allocators.tcmalloc_google.lists import Lists
from findleaks.allocators.tcmalloc_google.locate import Place, locate, size_classes
from findleaks.allocators.tcmalloc_google.lowlevel import region_records
from findleaks.allocators.tcmalloc_google.spans import Span, Spans, read_tree
from findleaks.allocators.tcmallocs import mark
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.target.base import Range, Target
from findleaks.target.ranges import inside, merged


class GoogleTcmalloc(Allocator):
    """See allocators.base.Allocator."""

    name = "google-tcmalloc"
    release_call = "MallocExtension::ReleaseMemoryToSystem(SIZE_MAX)"
    release_settings = ("MallocExtension::SetBackgroundReleaseRate, with a thread that runs ProcessBackgroundActions",)
    cache_setting = "MallocExtension::SetMaxPerCpuCacheSize"
    granule = 8

    def __init__(self, target: Target, engine: Engine, place: Place) -> None:
        self.target = target
        self.engine = engine
        self.place = place
        self.memory = Memory(target)
        self.where = place.image.name
        self.version = f"{place.layout.page >> 10} KiB pages"
        self.problems: list[Problem] = []
        self.tree = read_tree(self.memory, engine, place)
        self.spans = Spans(target, engine, place, self.tree, self.problems)
        self.regions = self._regions()
        self.own = self._own_memory()
        self.records = region_records(self.memory, engine, place, self.regions, self.own)
        self.found = caches.find(self.memory, engine, place, self.own, self.problems)
        self.lists = Lists(target, engine, place, self.ranges())
        self.free: array[int] = array("Q")  # blocks on lists of spans without bitmap
        self._heaps: Optional[list[Heap]] = None
        self._starts: Optional[list[int]] = None

    def _regions(self) -> list[Range]:
        """Memory of the page heap: mappings that have pages in the page map.

        Mappings of whole huge pages in reach of its leaves count too: where all was freed, the page
        map has next to no entries.
        """
        layout, found = self.place.layout, []
        reach = merged(Range(leaf.base, leaf.base + layout.reach) for leaf in self.tree.leaves)
        for region in self.target.regions():
            if region.writable and region.readable and not region.name.startswith(("/", "[stack", "[heap")):
                at = bisect_left(self.tree.pages, region.start >> layout.shift)
                used = at < len(self.tree.pages) and self.tree.pages[at] << layout.shift < region.end
                if used or (region.start % HUGE_PAGE == 0 == region.end % HUGE_PAGE and inside(reach, region.start)):
                    found.append(Range(region.start, region.end))
        return found

    def _own_memory(self) -> list[Range]:
        """Memory of the arena for descriptors (arena.h), in whole mappings.

        The arena has an address space of its own (internal/memory_tag.h).
        """
        known = sorted({*(node.start for node in self.tree.nodes), *self.spans.addresses, *self.spans.samples})
        found = []
        for region in self.target.regions():
            at = bisect_left(known, region.start)
            if region.writable and region.readable and at < len(known) and known[at] < region.end:
                if not inside(self.regions, region.start) and not inside(self.place.image.data, region.start):
                    found.append(Range(region.start, region.end))
        return merged(found)

    def ranges(self) -> list[Range]:
        """Where its blocks are."""
        return self.regions

    def heaps(self) -> list[Heap]:
        """See Allocator: a mapping is a heap."""
        if self._heaps is None:
            self._heaps = [self._heap(start, end) for start, end in self.regions]
        return self._heaps

    def _heap(self, start: int, end: int) -> Heap:
        def walk(blocks: Blocks) -> None:
            blocks.append_runs(self.spans.runs(start, end), bytes(self.spans.data))

        return Heap(start, end, "", walk)

    def sealed(self, blocks: Blocks) -> None:
        """See Allocator."""
        self.free = self.spans.free_lists(self.problems)
        mark(blocks, self.free, State.FREE, "a span's list of free blocks", self.problems)
        self.lists.follow(self.found.threads, self.problems)
        cached = array("Q")
        for held in self.held():
            cached += held.blocks
        mark(blocks, cached, State.CACHED, "a cache", self.problems)
        mark(blocks, array("Q", self.spans.proxies), State.METADATA, "a sampled block", self.problems)
        if self.spans.guarded:
            what = f"{len(self.spans.guarded):,} blocks have guard pages: where in its page each begins is not read"
            self.problems.append(Problem(self.spans.guarded[0], what, False))
        counts.reconcile(self)

    def held(self) -> list[Held]:
        """The blocks in all caches."""
        return [*self.found.held, *self.lists.held]

    def metadata(self) -> list[Range]:
        """See Allocator: the arena for descriptors, variables with pointers, records of regions.

        The arena has spans' descriptors, leaves of the page map, slabs of CPUs, slots, samples and
        thread caches. Pointers in the variables may be stale.
        """
        return merged([*self.own, *self.records, *self.place.variables(), *self.found.variables])

    def summary(self) -> dict[str, object]:
        """See Allocator."""
        cpus = len({held.owner for held in self.found.held if held.kind == "cpu"})
        return {
            "spans": len(self.spans.found),
            "cpu_caches": cpus,
            "thread_caches": len(self.found.threads),
            "page_size": self.place.layout.page,
        }

    def span_at(self, address: int) -> Optional[Span]:
        """The span whose memory holds `address`."""
        if self._starts is None:
            self._starts = [span.start for span in self.spans.found]
        index = bisect_right(self._starts, address) - 1
        return self.spans.found[index] if index >= 0 and address < self.spans.found[index].end else None

    def locate(self, address: int) -> str:
        """See Allocator."""
        span = self.span_at(address)
        if span is not None:
            return f"span of {span.size}-byte blocks at {span.start:#x}" if span.number else f"span of one block at {span.start:#x}"
        if inside(self.regions, address):
            return "free pages of the page heap"
        for heap in self.found.threads:
            if heap.address <= address < heap.address + self.place.layout.thread_cache:
                return f"thread cache of thread {heap.tid}" if heap.tid else "thread cache"
        cpus = self.found.cpus
        if cpus is not None and cpus.slabs <= address < cpus.slabs + self._cpus() * (1 << cpus.shift):
            return f"cache of CPU {address - cpus.slabs >> cpus.shift}"
        central = (address - self.place.central) // self.place.layout.stride
        if 0 <= central < self.place.layout.classes:
            return f"central list of size class {central}"
        if inside(sorted(self.tree.nodes), address):
            return "page map"
        return "descriptors" if inside(self.metadata(), address) else ""

    def _cpus(self) -> int:
        return max((held.owner + 1 for held in self.found.held if held.kind == "cpu"), default=0)

    def kept(self) -> dict[tuple[str, int], int]:
        """Blocks in caches by kind of cache and size class."""
        found: Counter[tuple[str, int]] = Counter()
        for held in self.held():
            found[held.kind, held.number] += len(held.blocks)
        return found

    def caches(self, blocks: Blocks) -> list[Cache]:
        """See Allocator."""
        return counts.rows(self, blocks)

    def arenas(self, blocks: Blocks) -> list[Arena]:
        """See Allocator: there is one, the page heap."""
        return counts.arenas(self, blocks)

    def thread_caches(self, blocks: Blocks) -> list[ThreadCache]:
        """See Allocator: of threads, and of CPUs, which have no thread and are named."""
        return counts.thread_caches(self)

    def counted(self) -> dict[str, int]:
        """See Allocator: names of MallocExtension's properties."""
        return counts.properties(self)

    def blocks_in_flight(self, words: Sequence[int], blocks: Blocks) -> Iterator[int]:
        """See Allocator: all blocks of a span that is being cut up or emptied.

        The thread has the address of the span's descriptor.
        """
        named = set(words)
        return (start for span in self.spans.found if span.address in named for start in starts(blocks, span.start, span.end))

    def verify(self, blocks: Blocks) -> Iterator[Optional[Problem]]:
        """See Allocator."""
        return integrity.verify(self)


def allocators(target: Target, engine: Engine, places: Sequence[tuple[Image, int]]) -> list[GoogleTcmalloc]:
    """The tcmallocs whose class_to_size_ is at one of these addresses."""
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
