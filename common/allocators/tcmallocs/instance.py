"""The common part of both tcmallocs as an Allocator: spans of blocks, cached blocks, metadata."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Generic, Optional, Protocol, TypeVar

from findleaks.allocators.base import Allocator, Arena, Cache, Heap, Problem, ThreadCache, add_first_problems, count_by_size, list_starts
from findleaks.allocators.memory import Memory
from findleaks.allocators.tcmallocs.caches import FreeList, Held, ThreadHeap, follow_lists
from findleaks.allocators.tcmallocs.page_map import ADDRESS_BITS, Place, Tree
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.target.base import Range, Target
from findleaks.target.ranges import range_at

STEP = 1 << 16  # pages or blocks between two checks for Ctrl-C


class Span(Protocol):
    """A span: the address of its descriptor, its memory, and its size class, which is 0 for a span
    of one block and for free pages."""

    @property
    def address(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def number(self) -> int: ...


S = TypeVar("S", bound=Span)


class PageHeap(Allocator, Generic[S]):
    """One tcmalloc; see Allocator. Subclasses set the attributes."""

    granule = 8
    place: Place
    tree: Tree
    spans: Sequence[S]  # ascending
    ranges: Sequence[Range]  # memory of its blocks
    threads: Sequence[ThreadHeap]
    thread_cache: int  # bytes of a ThreadCache

    def __init__(self, target: Target, engine: Engine, place: Place) -> None:
        self.target = target
        self.engine = engine
        self.memory = Memory(target)
        self.where = place.image.name
        self.problems: list[Problem] = []
        self.free: Sequence[int] = ()  # blocks on lists of spans
        self.held: list[Held] = []

    def used_spans(self) -> Sequence[S]:
        """Return the spans that contain blocks."""
        return self.spans

    @cached_property
    def _starts(self) -> list[int]:
        return [span.start for span in self.spans]

    def span_at(self, address: int) -> Optional[S]:
        """Return the span that contains `address`, or None."""
        index = bisect_right(self._starts, address) - 1
        return self.spans[index] if index >= 0 and address < self.spans[index].end else None

    @cached_property
    def _heaps(self) -> list[Heap]:
        return [self.heap(part) for part in self.ranges]

    def heaps(self) -> list[Heap]:
        """Return the heaps. Each contiguous piece of memory is one heap."""
        return self._heaps

    def heap(self, part: Range) -> Heap:
        """Return the heap of one of `ranges`."""
        raise NotImplementedError

    # ---- lists of freed blocks ----

    def mark(self, blocks: Blocks, addresses: Sequence[int], state: State, what: str) -> None:
        """Set the state of the blocks at these addresses, which come from the list `what`. Report
        addresses at which no block starts."""
        unknown = blocks.set_state(addresses, state)
        text = "where no block starts: the list or a span is corrupt"
        found = (Problem(address, f"{what} has {address:#x}, {text}") for address in unknown)
        add_first_problems(self.problems, found, "in lists of that kind")

    def mark_cached(self, blocks: Blocks, what: str) -> None:
        """Mark the blocks in caches; see `mark`."""
        cached = array("Q")
        for held in self.held:
            cached += held.blocks
        self.mark(blocks, cached, State.CACHED, what)

    def follow_caches(self, lists: Sequence[FreeList]) -> None:
        """Find the blocks on these lists of caches, and report problems."""
        threads = {heap.address: heap for heap in self.threads}

        def problems() -> Iterator[Problem]:
            for followed in follow_lists(self.target, self.engine, self.ranges, lists):
                one = followed.list
                heap = threads.get(one.cache)
                kind, owner = ("transfer", one.slot) if heap is None else ("thread", heap.tid)
                self.held.append(Held(kind, owner, one.cache, one.number, followed.blocks))
                whose = f"slot {one.slot} of the transfer cache" if heap is None else heap.owner
                problem = followed.problem(self.place.sizes[one.number], whose)
                if problem is not None:
                    yield problem

        add_first_problems(self.problems, problems(), "lists of caches that differ from their counts", self.place.central)

    def reconcile_thread_caches(self) -> None:
        """Report thread caches whose count of bytes differs from the size of the blocks on their
        lists."""
        sums: Counter[int] = Counter()
        for held in self.held:
            sums[held.address] += self.place.sizes[held.number] * len(held.blocks)
        for heap in self.threads:
            if sums[heap.address] != heap.size:
                what = f"{heap.owner} counts {heap.size:,} bytes, its lists hold {sums[heap.address]:,}"
                self.problems.append(Problem(heap.address, what, False))

    # ---- statistics ----

    def own_counts(self, size: int) -> Mapping[str, int]:
        """Return the allocator's counters of the classes of this size, by its own names."""
        raise NotImplementedError

    def caches(self, blocks: Blocks) -> list[Cache]:
        """Return a row for each size, because a block does not show its class. The row "large" has
        the blocks that are alone in their span."""
        counts = {cache.size: [cache.in_use, cache.cached, cache.free] for cache in count_by_size("", self.heaps(), blocks)}
        memory: Counter[int] = Counter()
        large, large_bytes = [0, 0, 0], [0, 0, 0]
        sizes = self.place.sizes
        for span in self.used_spans():
            memory[sizes[span.number]] += span.end - span.start
            block = None if span.number else blocks.lookup(span.start)
            if block is not None and block[1] == span.start and block[2] in counts and block[3] != State.METADATA:
                _, _, size, state = block
                counts[size][state] -= 1
                large[state] += 1
                large_bytes[state] += size
        found = []
        for size, (used, cached, free) in counts.items():
            if used or cached or free:
                own = self.own_counts(size)
                sums = (used * size, cached * size, free * size)
                found.append(Cache("", str(size), size, used, cached, free, *sums, memory[size], own=own))
        if any(large):
            used, cached, free = large
            sums = (large_bytes[0], large_bytes[1], large_bytes[2])
            found.append(Cache("", "large", 0, used, cached, free, *sums, memory[0], own={"spans": sum(large)}))
        return found

    def page_heap(self, blocks: Blocks, mapped: int, own: Mapping[str, int], spare: int) -> list[Arena]:
        """Return the only arena, with its mapped and spare bytes."""
        found = self.caches(blocks)
        used, cached = sum(cache.in_use_bytes for cache in found), sum(cache.cached_bytes for cache in found)
        free = sum(cache.free_bytes for cache in found)
        return [Arena("page heap", used, cached, free, mapped, own, spare)]

    def thread_caches(self, blocks: Blocks) -> list[ThreadCache]:
        """Return the caches of threads, and those of CPUs with the CPU's name."""
        found = []
        for held in self.held:
            size, count = self.place.sizes[held.number], len(held.blocks)
            if held.kind == "thread" and count:
                found.append(ThreadCache(held.owner, held.address, str(size), size, count, count * size))
            elif held.kind == "cpu" and count:
                cpu = f"CPU {held.owner}"
                found.append(ThreadCache(0, held.address, f"{size} of {cpu}", size, count, count * size, cpu))
        return found

    # ---- addresses ----

    def locate(self, address: int) -> str:
        span = self.span_at(address)
        if span is not None and span.number:
            return f"span of {self.place.sizes[span.number]}-byte blocks at {span.start:#x}"
        found = self.locate_pages(address, span)
        if found:
            return found
        for heap in self.threads:
            if heap.address <= address < heap.address + self.thread_cache:
                return f"thread cache of thread {heap.tid}" if heap.tid else "thread cache"
        number = (address - self.place.central) // self.place.layout.stride
        if 0 <= number < self.place.layout.classes:
            return f"central list of size class {number}"
        if range_at(self._nodes, address):
            return "page map"
        return "descriptors" if range_at(self.metadata(), address) else ""

    def locate_pages(self, address: int, span: Optional[S]) -> str:
        """Return the name of the part at an address that is in a span without size class, or in no
        span; otherwise ""."""
        raise NotImplementedError

    @cached_property
    def _nodes(self) -> list[Range]:
        return sorted(self.tree.nodes)

    def blocks_in_flight(self, words: Sequence[int], blocks: Blocks) -> Iterator[int]:
        """Yield all blocks of each span that a thread is dividing or emptying. Such a thread has
        the address of the span's descriptor in one of its words."""
        named = set(words)
        return (start for span in self.spans if span.address in named for start in list_starts(blocks, span.start, span.end))

    # ---- verify ----

    def wrong_pages(
        self, checked: dict[str, int], named_class: bool, problem: Callable[[S, int, int, int], Problem]
    ) -> Iterator[Optional[Problem]]:
        """Yield a problem for each entry of the page map that does not have the span of its page.
        Yield None so that the caller can check for Ctrl-C.

        Only spans with a size class are checked. With `named_class`, entries also have the class,
        both in the word and beside it. `problem` makes a problem from a span, a page's address, and
        the word and class of its entry."""
        tree, shift, since = self.tree, self.place.layout.shift, 0
        at, count = 0, len(tree.pages)
        for span in self.spans:
            if not span.number:
                continue
            right = (span.address | span.number << ADDRESS_BITS, span.number) if named_class else (span.address, 0)
            first, last = span.start >> shift, span.end >> shift
            at = bisect_left(tree.pages, first, at)
            for page in range(first, last):
                entry = (0, 0)
                if at < count and tree.pages[at] == page:
                    entry = (tree.words[at], tree.classes[at] if named_class else 0)
                    at += 1
                if entry != right:
                    yield problem(span, page << shift, *entry)
            checked["pages"] += last - first
            since += last - first
            if since >= STEP:
                since = 0
                yield None

    def wrongly_cached(self) -> Iterator[Optional[Problem]]:
        """Yield a problem for each freed block that is on two lists, or in a cache of another size
        class. Yield None so that the caller can check for Ctrl-C."""
        sizes, looked = self.place.sizes, 0
        every = set(self.free)
        for held in self.held:
            every.update(held.blocks)
            for address in held.blocks:
                span = self.span_at(address)
                if span is not None and span.number != held.number:
                    what = f"{sizes[span.number]} bytes" if span.number else "a span of its own"
                    cache = f"a cache of blocks of {sizes[held.number]} (size class {held.number})"
                    yield Problem(address, f"{cache} has {address:#x}, which is a block of {what} (size class {span.number})")
                looked += 1
                if looked % STEP == 0:
                    yield None
        if len(every) != len(self.free) + looked:
            times = Counter(self.free)
            for held in self.held:
                times.update(held.blocks)
            for address, count in sorted(times.items()):
                if count > 1:
                    what = f"the block at {address:#x} is {count} times on lists of freed blocks: it was freed twice"
                    yield Problem(address, what, damaged=Range(address, address))
