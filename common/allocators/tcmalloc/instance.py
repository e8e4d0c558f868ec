"""One tcmalloc as an Allocator: its heaps, free lists, caches and metadata."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Optional

from findleaks.allocators.base import Arena, Heap, Problem, Spare, any_within
from findleaks.allocators.bulk import join_records
from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.allocators.tcmalloc import caches, counts, extension, heap_profile, integrity
from findleaks.allocators.tcmalloc.heap import TcmallocHeap
from findleaks.allocators.tcmalloc.layout import CACHE, DEBUG_MAGIC, HEADER, IN_USE, NORMAL, RELEASES, RETURNED, SPAN, STACK
from findleaks.allocators.tcmalloc.lists import follow_spans
from findleaks.allocators.tcmalloc.locate import Place, locate, size_classes
from findleaks.allocators.tcmalloc.spans import Span, bridge, read_spans, read_tree, runs, sampled_sizes
from findleaks.allocators.tcmallocs.caches import FreeList
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges, nonzero_pieces, subtract

if TYPE_CHECKING:
    from findleaks.allocators.sites import Recording

BANNER = re.compile(rb"gperftools (\d{1,2}\.\d{1,3}(?:\.\d{1,3})?)")
MAX_TEXT = 64 << 20  # read-only bytes that are searched for the version


class Tcmalloc(TcmallocHeap):
    """One gperftools tcmalloc; see Allocator."""

    name = "tcmalloc"
    release_call, releases_free_pages = "MallocExtension::instance()->ReleaseFreeMemory()", True
    # TCMALLOC_RELEASE_RATE has an effect only while pages are freed, and none in an idle process.
    release_settings = ("TCMALLOC_AGGRESSIVE_DECOMMIT=1 in the environment",)
    cache_setting = "MallocExtension::instance()->MarkThreadIdle() in threads that go idle, then ReleaseFreeMemory()"

    site_settings = ("HEAPPROFILE=/tmp/profile (needs libtcmalloc, not libtcmalloc_minimal)", "TCMALLOC_SAMPLE_PARAMETER=524288")
    thread_cache = CACHE

    def __init__(self, target: Target, engine: Engine, place: Place) -> None:
        super().__init__(target, engine, place)
        self.place = place
        self.tree = read_tree(self.memory, engine, place, self.problems)
        self.spans = read_spans(target, engine, place, self.tree, self.problems)
        self.ranges = merge_ranges(Range(span.start, span.end) for span in self.spans)
        self.sampled = sampled_sizes(target, engine, place, self.spans)
        self.threads, self.release = caches.find(self.memory, engine, place, self.ranges, self.problems)
        self.version = self._version() or self.release
        self.profile = heap_profile.find(self.memory, engine, place.image)
        self.listed = Counter()
        self.lists: list[FreeList] = []  # lists of thread caches and transfer caches
        self.replaced: list[int] = []  # its own blocks of size class 1, which count as in use

    def _version(self) -> str:
        """Return the version in TC_VERSION_STRING, which is in the read-only bytes of the image, or
        ""."""
        module, left = self.place.image.module, MAX_TEXT
        for region in self.target.regions():
            if region.readable and not region.writable and module.start <= region.start < module.end and left > 0:
                for piece in nonzero_pieces(self.target, region.start, min(region.end, region.start + left)):
                    match = BANNER.search(piece.data)
                    if match:
                        return match.group(1).decode("ascii")
                left -= region.size
        return ""

    def heap(self, part: Range) -> Heap:

        def walk(blocks: Blocks) -> None:
            first, last = (bisect_left(self._starts, bound) for bound in part)
            blocks.append_runs(runs(self.spans[first:last], self.place.sizes, self.sampled))

        return Heap(*part, "", walk)

    def mark_blocks(self, blocks: Blocks) -> None:
        self.free, self.listed = follow_spans(self)
        self.mark(blocks, self.free, State.FREE, "a span's list of free blocks")
        self.lists = [one for heap in self.threads for one in heap.lists]
        self.lists += caches.transfers(self.memory, self.place, self.problems)
        self.follow_caches(self.lists)
        self.mark_cached(blocks, "a cache's list")
        if self.release == RELEASES[1]:
            self.replaced = extension.find_replaced_extension(self, blocks)
            blocks.set_state(self.replaced, State.METADATA)
        counts.reconcile(self)
        self._look_for_headers(blocks)

    def _look_for_headers(self, blocks: Blocks) -> None:
        """Report libtcmalloc_debug, which puts four words before each block (debugallocation.cc,
        MallocBlock)."""
        looked = marked = 0
        for number in range(5, len(self.place.sizes)):
            for span in self.spans_of(number)[:2]:
                at = blocks.at_or_after(span.start)
                for index in range(at, min(at + 4, len(blocks))):
                    if blocks.address(index) < span.end and blocks.state(index) == State.IN_USE:
                        looked += 1
                        marked += self.memory.word(blocks.address(index) + 16) == DEBUG_MAGIC
        if looked and marked > looked // 2:
            what = f"each block begins with a header of {HEADER} bytes, so blocks of the program are reported as possibly lost"
            self.problems.append(Problem(self.place.central, f"{self.where} is tcmalloc's debug variant: {what}", False))

    def metadata(self) -> list[Range]:
        """Return the memory of spans' descriptors, the page map, thread caches, and variables that
        contain pointers: the central lists with stale chains, and the page heap with its cache of
        page numbers."""
        return self._metadata

    @cached_property
    def _metadata(self) -> list[Range]:
        own = join_records(sorted(span.address for span in self.spans), SPAN)
        own += [Range(span.objects, span.objects + STACK) for span in self.spans if span.start in self.sampled]
        own += self.tree.nodes
        own += self.profile.memory if self.profile is not None else []
        own += [Range(heap.address, heap.address + CACHE) for heap in self.threads]
        outside = subtract(bridge(merge_ranges(own)), self.ranges)
        outside += self.place.variables()
        outside += extension.hints(self) if self.spans else []
        return merge_ranges(outside)

    def summary(self) -> dict[str, object]:
        pages = counts.page_heap(self)
        kept = {name: pages[name] for name in ("system_bytes", "free_bytes", "unmapped_bytes")}
        return {"spans": len(self.spans), "thread_caches": len(self.threads), "page_size": self.place.layout.page, **kept}

    def used_spans(self) -> list[Span]:
        return [span for span in self.spans if span.location == IN_USE]

    def locate_pages(self, address: int, span: Optional[Span]) -> str:
        if span is None:
            return ""
        if span.location == IN_USE:
            return f"span of one block at {span.start:#x}"
        kept = "free pages of the page heap" if span.location == NORMAL else "free pages, returned to the system"
        return f"{kept} ({span.start:#x} to {span.end:#x})"

    def own_counts(self, size: int) -> dict[str, int]:
        number = self.place.sizes.index(size)
        length = sum(one.length for heap in self.threads for one in heap.lists if one.number == number)
        return {"class": number, **counts.central(self, number), "thread": length}

    def arenas(self, blocks: Blocks) -> list[Arena]:
        """Return the only arena, the page heap."""
        mapped = sum(self.page_bytes) + sum(end - start for start, end in self.metadata())
        returned = self.page_bytes[RETURNED]
        return self.page_heap(blocks, mapped, {**self.read_counters(), "returned": returned}, self.page_bytes[NORMAL] + returned)

    def spare(self, blocks: Blocks) -> list[Spare]:
        """Return the spans on the page heap's lists."""
        sorts = {NORMAL: "page heap"}
        return [Spare(s.start, s.end, sorts.get(s.location, "returned"), "") for s in self.spans if s.location != IN_USE]

    @property
    def has_recordings(self) -> bool:
        return self.profile is not None or bool(self.sampled)

    def recordings(self, blocks: Blocks) -> list[Recording]:
        # Few commands need stacks.
        from findleaks.allocators.sites import own_library
        from findleaks.allocators.tcmalloc.sites import of_profile, of_samples

        own = own_library(self.where, "tcmalloc")
        profiled = [of_profile(self.memory, self.engine, self.profile, blocks, own)] if self.profile is not None else []
        return [*profiled, *of_samples(self.memory, self.engine, self.spans, blocks, own)]

    def read_counters(self) -> dict[str, int]:
        """Return totals by the names of MallocExtension::GetNumericProperty."""
        return counts.properties(self)

    def is_changing(self, problem: Problem, words: Sequence[int], blocks: Blocks) -> bool:
        """Return whether the thread is changing the memory that the problem is about (see
        Allocator).

        If it is changing the lists of its cache, its words include the address of the cache. If it
        is changing the lists and counters of the page heap, they include the address of a span."""
        if super().is_changing(problem, words, blocks):
            return True
        if problem.address == self.place.root + self.place.layout.stats:
            return not {span.address for span in self.spans}.isdisjoint(words)
        changed = (one.cache for one in self.lists if problem.address in (one.head, one.cache))
        return any_within(words, (Range(cache, cache + self.structure) for cache in changed))

    def verify(self, blocks: Blocks) -> Iterator[Optional[Problem]]:
        return integrity.verify(self)


def allocators(target: Target, engine: Engine, places: Sequence[tuple[Image, int]]) -> list[Tcmalloc]:
    """Return the tcmallocs whose class_to_size_ is at one of these addresses."""
    memory = Memory(target)
    found: list[Tcmalloc] = []
    for image, table in places:
        sizes = size_classes(memory, table)
        place = locate(memory, engine, image, table, sizes) if sizes else None
        if place is not None:
            found.append(Tcmalloc(target, engine, place))
    return found
