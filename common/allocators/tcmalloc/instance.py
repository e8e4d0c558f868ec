"""One tcmalloc of a process as an Allocator: its heaps, free lists, caches and own memory."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.base import Allocator, Arena, Cache, Heap, Problem, Spare, ThreadCache, any_within, starts
from findleaks.allocators.bulk import clusters
from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.allocators.tcmalloc import caches, counts, extension, integrity
from findleaks.allocators.tcmalloc.caches import FreeList
from findleaks.allocators.tcmalloc.layout import CACHE, CLASSES, DEBUG_MAGIC, HEADER, IN_USE, NORMAL, RELEASES, SPAN, STACK
from findleaks.allocators.tcmalloc.lists import Lists
from findleaks.allocators.tcmalloc.locate import Place, locate, size_classes
from findleaks.allocators.tcmalloc.spans import Span, bridged, contiguous, read_spans, read_tree, runs, sampled_sizes
from findleaks.allocators.tcmallocs import mark
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.target.base import Range, Target
from findleaks.target.ranges import inside, merged, nonzero_pieces, subtract

BANNER = re.compile(rb"gperftools (\d{1,2}\.\d{1,3}(?:\.\d{1,3})?)")
MAX_TEXT = 64 << 20  # of read-only bytes that are searched for it


class Tcmalloc(Allocator):
    """See allocators.base.Allocator."""

    name = "tcmalloc"
    release_call, releases_free_pages = "MallocExtension::instance()->ReleaseFreeMemory()", True
    release_settings = ("TCMALLOC_RELEASE_RATE=10 (1 is usual, 0: never)", "TCMALLOC_AGGRESSIVE_DECOMMIT=1")
    cache_setting = "TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES, or MallocExtension::instance()->MarkThreadIdle() in threads that go idle"
    granule = 8

    def __init__(self, target: Target, engine: Engine, place: Place) -> None:
        self.target = target
        self.engine = engine
        self.place = place
        self.memory = Memory(target)
        self.where = place.image.name
        self.problems: list[Problem] = []
        self.tree = read_tree(self.memory, engine, place)
        self.spans = read_spans(target, engine, place, self.tree, self.problems)
        self.parts = contiguous(self.spans)
        self.ranges = [Range(self.spans[first].start, self.spans[last - 1].end) for first, last in self.parts]
        self.sampled = sampled_sizes(target, engine, place, self.spans)
        self.found = caches.find(self.memory, engine, place, self.ranges, self.problems)
        self.version = self._version() or self.found.release
        self.lists = Lists(target, engine, place, self.spans, self.ranges)
        # blocks of size class 1 that are its own, which it counts as in use
        self.replaced: list[int] = []
        self._heaps: Optional[list[Heap]] = None
        self._metadata: Optional[list[Range]] = None
        self._by_class: Optional[dict[int, list[Span]]] = None
        self._starts: Optional[list[int]] = None

    def _version(self) -> str:
        """The version in TC_VERSION_STRING, in the read-only bytes of the image; "" if unknown."""
        module, left = self.place.image.module, MAX_TEXT
        for region in self.target.regions():
            if region.readable and not region.writable and module.start <= region.start < module.end and left > 0:
                for piece in nonzero_pieces(self.target, region.start, min(region.end, region.start + left)):
                    match = BANNER.search(piece.data)
                    if match:
                        return match.group(1).decode("ascii")
                left -= region.size
        return ""

    def heaps(self) -> list[Heap]:
        """See Allocator: a contiguous piece of memory is a heap."""
        if self._heaps is None:
            self._heaps = [self._heap(first, last) for first, last in self.parts]
        return self._heaps

    def _heap(self, first: int, last: int) -> Heap:
        def walk(blocks: Blocks) -> None:
            blocks.append_runs(runs(self.spans[first:last], self.place.sizes, self.sampled))

        return Heap(self.spans[first].start, self.spans[last - 1].end, "", walk)

    def sealed(self, blocks: Blocks) -> None:
        """See Allocator."""
        free = self.lists.follow_spans(self.problems)
        mark(blocks, free, State.FREE, "a span's list of free blocks", self.problems)
        cached = self.lists.follow_cached(self.cached_lists(), self.found.heaps, self.problems)
        mark(blocks, cached, State.CACHED, "a cache's list", self.problems)
        if self.found.release == RELEASES[1]:
            self.replaced = extension.replaced(self, blocks)
            blocks.set_state(self.replaced, State.METADATA)
        counts.reconcile(self)
        self._look_for_headers(blocks)

    def _look_for_headers(self, blocks: Blocks) -> None:
        """Report if this is libtcmalloc_debug (debugallocation.cc, MallocBlock).

        It puts a header of four words in front of each block.
        """
        looked = marked = 0
        for number in range(5, len(self.place.sizes)):
            for span in self.spans_of(number)[:2]:
                at = blocks.at_or_after(span.start)
                for index in range(at, min(at + 4, len(blocks))):
                    if blocks.address(index) < span.end and blocks.state(index) == State.IN_USE:
                        looked += 1
                        marked += self.memory.word(blocks.address(index) + 16) == DEBUG_MAGIC
        if looked and marked > looked // 2:
            what = f"each block begins with a header of {HEADER} bytes, so what the program holds is called possible"
            self.problems.append(Problem(self.place.central, f"{self.where} is tcmalloc's debug variant: {what}", False))

    def cached_lists(self) -> list[FreeList]:
        """Every list of a thread cache or transfer cache."""
        mine = [one for heap in self.found.heaps for one in heap.lists]
        return mine + list(caches.transfers(self.memory, self.place, self.problems))

    def metadata(self) -> list[Range]:
        """See Allocator: spans' descriptors, the page map, thread caches, variables with pointers.

        The variables are central lists with stale chains, and the page heap with its cache of page
        numbers.
        """
        if self._metadata is None:
            own = clusters(sorted(span.address for span in self.spans), SPAN)
            own += [Range(span.objects, span.objects + STACK) for span in self.spans if span.start in self.sampled]
            own += self.tree.nodes
            own += [Range(heap.address, heap.address + CACHE) for heap in self.found.heaps]
            outside = subtract(bridged(merged(own)), self.ranges)
            outside += self.place.variables()
            outside += extension.hints(self) if self.spans else []
            self._metadata = merged(outside)
        return self._metadata

    def summary(self) -> dict[str, object]:
        """See Allocator."""
        page = self.place.layout.page
        return {"spans": len(self.spans), "thread_caches": len(self.found.heaps), "page_size": page, **counts.summary(self)}

    def span_at(self, address: int) -> Optional[Span]:
        """The span whose memory holds `address`."""
        if self._starts is None:
            self._starts = [span.start for span in self.spans]
        index = bisect_right(self._starts, address) - 1
        return self.spans[index] if index >= 0 and address < self.spans[index].end else None

    def spans_of(self, number: int) -> list[Span]:
        """The spans of a size class."""
        if self._by_class is None:
            self._by_class = {}
            for span in self.spans:
                if span.number and span.location == IN_USE:
                    self._by_class.setdefault(span.number, []).append(span)
        return self._by_class.get(number, [])

    def locate(self, address: int) -> str:
        """See Allocator."""
        span = self.span_at(address)
        if span is not None:
            if span.location != IN_USE:
                kept = "free pages of the page heap" if span.location == NORMAL else "free pages, returned to the system"
                return f"{kept} ({span.start:#x} to {span.end:#x})"
            if span.number:
                return f"span of {self.place.sizes[span.number]}-byte blocks at {span.start:#x}"
            return f"span of one block at {span.start:#x}"
        for heap in self.found.heaps:
            if heap.address <= address < heap.address + CACHE:
                return f"thread cache of thread {heap.tid}" if heap.tid else "thread cache"
        central = address - self.place.central
        if 0 <= central < CLASSES * self.place.layout.central:
            return f"central list of size class {central // self.place.layout.central}"
        if inside(self.tree.nodes, address):
            return "page map"
        return "descriptors" if inside(self.metadata(), address) else ""

    def caches(self, blocks: Blocks) -> list[Cache]:
        """See Allocator."""
        return counts.rows(self, blocks)

    def arenas(self, blocks: Blocks) -> list[Arena]:
        """See Allocator: there is one, the page heap."""
        return counts.arenas(self, blocks)

    def spare(self, blocks: Blocks) -> list[Spare]:
        """See Allocator: spans on the page heap's lists."""
        sorts = {NORMAL: "page heap"}
        return [Spare(s.start, s.end, sorts.get(s.location, "returned"), "") for s in self.spans if s.location != IN_USE]

    def thread_caches(self, blocks: Blocks) -> list[ThreadCache]:
        """See Allocator."""
        return counts.thread_caches(self)

    def counted(self) -> dict[str, int]:
        """See Allocator: names of MallocExtension::GetNumericProperty."""
        return counts.properties(self)

    def blocks_in_flight(self, words: Sequence[int], blocks: Blocks) -> Iterator[int]:
        """See Allocator: all blocks of a span that is being cut up or emptied.

        The thread has the address of the span's descriptor.
        """
        named = set(words)
        return (start for span in self.spans if span.address in named for start in starts(blocks, span.start, span.end))

    def changing(self, problem: Problem, words: Sequence[int], blocks: Blocks) -> bool:
        """See Allocator.

        A thread that changes lists of its own cache has the cache's address. One that changes the
        page heap's lists and counters has the address of a span.
        """
        if super().changing(problem, words, blocks):
            return True
        if problem.address == self.place.root + self.place.layout.stats:
            return not {span.address for span in self.spans}.isdisjoint(words)
        caches_ = [one.cache for one in self.cached_lists() if problem.address in (one.head, one.cache)]
        return any_within(words, (Range(cache, cache + self.structure) for cache in caches_))

    def verify(self, blocks: Blocks) -> Iterator[Optional[Problem]]:
        """See Allocator."""
        return integrity.verify(self)


def allocators(target: Target, engine: Engine, places: Sequence[tuple[Image, int]]) -> list[Tcmalloc]:
    """The tcmallocs whose class_to_size_ is at one of these addresses."""
    memory = Memory(target)
    found: list[Tcmalloc] = []
    for image, table in places:
        sizes = size_classes(memory, table)
        if not sizes:
            continue
        place = locate(memory, engine, image, table, sizes)
        if place is not None:
            found.append(Tcmalloc(target, engine, place))
    return found
