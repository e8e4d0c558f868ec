"""One mimalloc as an Allocator: its heaps, blocks and counts.

A block on a page's own lists (`free`, `local_free`) is FREE. A block that another thread freed is
CACHED until the owner of the page collects it. Until then, the page counts the block in `used`. So
the number of blocks in use + cached = used, and used + free = capacity."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, Optional, TypeVar, Union

from findleaks.allocators.base import Allocator, Arena, Cache, Heap, Problem, State, ThreadCache
from findleaks.allocators.images import find_images
from findleaks.allocators.memory import Memory
from findleaks.allocators.mimalloc import aligned, arenas, checks, pagemap, segments
from findleaks.allocators.mimalloc.layout import DELAYED_KEYS, MimallocPage, PageLayout, SegmentLayout
from findleaks.allocators.mimalloc.lists import FreeLists, decode
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import run_states
from findleaks.graph.roots import register_words, root_ranges
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges, range_at

HEAP_BYTES = 2840  # the least size of mi_heap_t of 2.x in bytes
MAX_DELAYED = 1 << 24  # maximum number of blocks on the thread_delayed_free lists of all heaps
SHOWN = 16  # problems of one kind that are reported one by one

Key = TypeVar("Key")


class MimallocSpan(NamedTuple):
    """A range with pages: a segment, an arena or a mapping. `header` is the size of its
    descriptors."""

    start: int
    end: int
    label: str
    header: int


class Mimalloc(Allocator):
    """One mimalloc; see Allocator. `pages` ascend and do not overlap. `moved` maps aligned blocks
    to their pointers."""

    name = "mimalloc"
    # Depending on version and settings, the call returns all free pages, some of them, or none.
    release_call = "mi_collect(true)"
    release_settings = ("MIMALLOC_PURGE_DELAY=0 in the environment (before 2.1: MIMALLOC_RESET_DELAY=0 and MIMALLOC_PAGE_RESET=1)",)
    cache_setting = "mi_collect(true) in threads that go idle"
    granule = 8

    def __init__(
        self,
        target: Target,
        engine: Engine,
        layout: Union[SegmentLayout, PageLayout],
        where: str,
        spans: list[MimallocSpan],
        pages: list[MimallocPage],
        own: list[Range],
        problems: list[Problem],
    ) -> None:
        self.layout = layout
        self.version = layout.version
        self.where = where
        self.problems = problems
        self.checked: dict[str, int] = {}
        self._target = target
        self._engine = engine
        self.memory = Memory(target)
        self._spans = sorted(spans, key=lambda span: span.start)
        self._own = own
        self.pages = self._disjoint(pages)
        self._starts = [page.start for page in self.pages]
        self.lists = FreeLists(target, engine, self.problems)
        self.delayed: dict[int, int] = {}
        self.moved: dict[int, int] = {}
        self.padding = False
        self.forgetful = False
        self._heaps: list[Heap] = []
        self._tids = map_thread_ids(target)

    def _disjoint(self, pages: list[MimallocPage]) -> list[MimallocPage]:
        """Sort the pages, and remove pages that overlap. Of two overlapping pages, one without
        blocks in use is removed."""
        kept: list[MimallocPage] = []
        for page in sorted(pages, key=lambda page: page.start):
            if not kept or page.start >= kept[-1].end:
                kept.append(page)
            elif page.used and not kept[-1].used:
                kept[-1] = page
            elif page.used:
                what = f"page {page.meta:#x} overlaps page {kept[-1].meta:#x}: its blocks are not read"
                self.problems.append(Problem(page.meta, what))
        return kept

    def heaps(self) -> Sequence[Heap]:
        if self._heaps or not self._spans:
            return self._heaps
        self.lists.read(self.pages)
        if isinstance(self.layout, SegmentLayout):
            self._read_delayed(self.layout)
        if any(any(page.keys) for page in self.pages):
            self.padding = checks.are_padded(self.memory, self.pages, self._live())
        if self.forgetful or any(page.aligned for page in self.pages):
            self._find_moved()
        for span in self._spans:
            heap = Heap(span.start, span.end, span.label, lambda blocks: None, [Range(span.start, span.start + span.header)])
            heap.walk = lambda blocks, heap=heap: self._walk(heap, blocks)  # type: ignore[misc]
            self._heaps.append(heap)
        return self._heaps

    def _live(self) -> aligned.Live:
        lists = sorted(self.lists.free), sorted(self.lists.remote)

        def free(page: MimallocPage) -> set[int]:
            return {node for nodes in lists for node in nodes[bisect_left(nodes, page.start) : bisect_left(nodes, page.end)]}

        return aligned.Live(self.pages, free)

    def _find_moved(self) -> None:
        """Find the pointers that were moved inside their blocks."""
        heaps = [Range(span.start, span.end) for span in self._spans]
        used = merge_ranges(
            Range(page.start, page.end) for page in self.pages if self.lists.counts.get(page.meta, (0, 0))[0] < page.capacity
        )
        roots = root_ranges(self._target, self._engine, sorted([*heaps, *self._own]))
        self.moved = aligned.find_moved(self._target, self._engine, self._live(), roots, used, register_words(self._target), self.forgetful)

    def _read_delayed(self, layout: SegmentLayout) -> None:
        """Read each heap's thread_delayed_free: blocks of full pages that other threads freed."""
        word = self.memory.word
        owned: dict[int, set[int]] = {}
        for one in self.pages:
            if one.heap:
                owned.setdefault(one.heap, set()).add(one.owner)
        seen: set[int] = set()
        for heap, owners in sorted(owned.items()):
            at = next((heap + offset for offset in layout.delayed if word(heap + offset + 8) in owners), 0)
            if not at:
                continue
            self._own.append(Range(heap, heap + HEAP_BYTES))
            keys = (word(at + DELAYED_KEYS) or 0, word(at + DELAYED_KEYS + 8) or 0) if layout.keyed else (0, 0)
            node = word(at) or 0
            while node and len(seen) < MAX_DELAYED:
                page = self.page_at(node)
                if page is None or (node - page.start) % page.size or node in seen:
                    what = (
                        f"has a cycle, or joins another list, at {node:#x}" if node in seen else f"leads to {node:#x}, which is not a block"
                    )
                    self.problems.append(Problem(at, f"thread_delayed_free of the heap at {heap:#x} {what}: what follows counts as in use"))
                    break
                seen.add(node)
                self.lists.remote.append(node)
                free, remote = self.lists.counts.get(page.meta, (0, 0))
                self.lists.counts[page.meta] = (free, remote + 1)
                self.delayed[page.meta] = self.delayed.get(page.meta, 0) + 1
                link = word(node) or 0
                node = decode(link, keys, heap) if any(keys) else link

    def page_at(self, address: int) -> Optional[MimallocPage]:
        """Return the page with a block around `address`, or None."""
        index = bisect_right(self._starts, address) - 1
        return self.pages[index] if index >= 0 and address < self.pages[index].end else None

    def _inside(self, start: int, end: int) -> list[MimallocPage]:
        return self.pages[bisect_left(self._starts, start) : bisect_left(self._starts, end)]

    def _walk(self, heap: Heap, blocks: Blocks) -> None:
        pages = self._inside(heap.start, heap.end)
        if self.padding:
            for page in pages:
                self._walk_padded(page, blocks)
            return
        state = run_states(State.IN_USE, State.IN_USE)
        runs: array[int] = array("Q")
        spots = sorted(self.moved)
        for page in pages:
            at, count, size = page.start, page.capacity, page.size
            if page.aligned or self.forgetful:
                for block in spots[bisect_left(spots, page.start) : bisect_left(spots, page.end)]:
                    before = (block - at) // size
                    if before:
                        runs.extend((at, size, size, before, 0, state))
                    spot = self.moved[block]
                    runs.extend((spot, size, block + size - spot, 1, 0, state))
                    at, count = block + size, count - before - 1
            if count:
                runs.extend((at, size, size, count, 0, state))
        blocks.append_runs(runs)

    def _walk_padded(self, page: MimallocPage, blocks: Blocks) -> None:
        """Append the blocks of a page of a debug or secure build. Their usable size is the
        requested size."""
        free = self.live.free(page)
        starts, sizes = [], []
        for block in range(page.start, page.end, page.size):
            usable = page.size - 8 if block in free else checks.read_usable(self.memory, page, block)
            spot = self.moved.get(block, block)
            starts.append(spot)
            sizes.append(max(block + usable - spot, 1))
        blocks.append(starts, sizes, [State.IN_USE] * len(starts))

    @cached_property
    def live(self) -> aligned.Live:
        """The blocks in use, once all lists have been read."""
        return self._live()

    def mark_blocks(self, blocks: Blocks) -> None:
        for nodes, state in ((self.lists.free, State.FREE), (self.lists.remote, State.CACHED)):
            missing = blocks.set_state(nodes, state)
            for node in missing[:SHOWN]:
                self.problems.append(Problem(node, f"a free list has {node:#x}, where no block begins: its link was overwritten"))
            if len(missing) > SHOWN:
                self.problems.append(Problem(missing[SHOWN], f"and so have {len(missing) - SHOWN} more"))

    def metadata(self) -> Sequence[Range]:
        return merge_ranges(self._own)

    def summary(self) -> dict[str, object]:
        return {"pages": len(self.pages), "aligned": len(self.moved), **self.read_counters()}

    def locate(self, address: int) -> str:
        span = next((span for span in self._spans if span.start <= address < span.end), None)
        if span is None:
            return "data of mimalloc" if range_at(self.metadata(), address) else ""
        page = self.page_at(address)
        if page is not None:
            return f"page at {page.start:#x} of {span.label}"
        return f"header of {span.label}" if address < span.start + span.header else f"{span.label}, in no block"

    def _counts(self, page: MimallocPage) -> tuple[int, int, int]:
        """Return the number of blocks (in use, cached, free) of a page."""
        free, remote = self.lists.counts.get(page.meta, (0, 0))
        return page.capacity - free - remote, remote, free

    def caches(self, blocks: Blocks) -> list[Cache]:
        rows: dict[tuple[str, int], list[int]] = {}
        for page in self.pages:
            used, cached, free = self._counts(page)
            exact = page.aligned or self.padding or self.forgetful
            usable = page.size - (8 if self.padding else 0)
            in_use = blocks.totals(State.IN_USE, page.start, page.end).bytes if exact else used * usable
            numbers = (used, cached, free, in_use, cached * usable, free * usable, page.memory, 1, page.capacity, page.reserved, page.used)
            _add_numbers(rows, (page.arena, 0 if page.reserved == 1 else page.size), numbers)
        names = ("pages", "capacity", "reserved", "used")
        found = []
        for (label, size), row in sorted(rows.items()):
            own = dict(zip(names, row[7:]))
            if size:
                own["block_size"] = size
            usable = size - (8 if self.padding and size else 0)
            used, cached, free, in_use, kept, spare, memory = row[:7]
            name = str(size) if size else "large"
            found.append(Cache(label, name, usable, used, cached, free, in_use, kept, spare, memory, own=own))
        return found

    def arenas(self, blocks: Blocks) -> list[Arena]:
        rows: dict[str, list[int]] = {}
        for span in self._spans:
            _add_numbers(rows, span.label, (0, 0, 0, span.end - span.start, 1, 0))
        for page in self.pages:
            _add_numbers(rows, page.arena, (*(count * page.size for count in self._counts(page)), 0, 0, 1))
        kind = "segments" if isinstance(self.layout, SegmentLayout) else "areas"
        return [
            Arena(label, used, cached, free, mapped, {kind: areas, "pages": pages})
            for label, (used, cached, free, mapped, areas, pages) in rows.items()
        ]

    def thread_caches(self, blocks: Blocks) -> list[ThreadCache]:
        """Return, for each thread, the blocks that other threads freed and that the thread has not
        collected."""
        rows: dict[tuple[int, int], list[int]] = {}
        for page in self.pages:
            cached = self._counts(page)[1]
            if cached:
                rows.setdefault((page.owner, page.size), [page.heap, 0])[1] += cached
        return [
            ThreadCache(self._tids.get(owner, 0), heap, str(size), size, count, count * size)
            for (owner, size), (heap, count) in sorted(rows.items())
        ]

    def read_counters(self) -> Mapping[str, int]:
        """Return the sums of the pages' own counters. "committed" and "reserved" are bytes. "used"
        includes blocks that other threads freed."""
        return {
            "pages": len(self.pages),
            "used": sum(page.used for page in self.pages),
            "capacity": sum(page.capacity for page in self.pages),
            "used_bytes": sum(page.used * page.size for page in self.pages),
            "committed": sum(page.capacity * page.size for page in self.pages),
            "reserved": sum(page.reserved * page.size for page in self.pages),
        }

    def verify(self, blocks: Blocks) -> Iterator[Optional[Problem]]:
        return checks.verify(self, blocks)


def _add_numbers(rows: dict[Key, list[int]], key: Key, numbers: Sequence[int]) -> None:
    """Add the numbers, column by column, to the row of this key."""
    rows[key] = [a + b for a, b in zip(rows.get(key) or [0] * len(numbers), numbers)]


def map_thread_ids(target: Target) -> dict[int, int]:
    """Return {thread pointer: tid}. mimalloc identifies a thread by its thread pointer."""
    return {thread.thread_pointer: thread.tid for thread in target.threads() if thread.thread_pointer}


def find_all(
    target: Target, engine: Engine, writable: Sequence[Range], addresses: Sequence[int], maps: Sequence[tuple[int, int]]
) -> Sequence[Mimalloc]:
    """Find every mimalloc. 2.x has segments at some of `addresses`, 3.x has page maps at `maps`."""
    made: list[Mimalloc] = []
    for variable, top in maps:
        found = pagemap.read_instance(target, variable, top, writable)
        if found is not None:
            made.append(_make_with_page_map(target, engine, found, variable))
    taken = merge_ranges(Range(span.start, span.end) for allocator in made for span in allocator._spans)
    entries = segments.read_instances(target, [at for at in addresses if range_at(taken, at) is None])
    return [*made, *(_make_with_segments(target, engine, entry) for entry in entries)]


def _make_with_page_map(target: Target, engine: Engine, found: pagemap.PageMapInstance, variable: int) -> Mimalloc:
    spans = [MimallocSpan(a.start, a.end, f"arena {a.number}", a.header) for a in found.arenas]
    spans += [MimallocSpan(m.start, m.end, "mappings", 0) for m in found.mappings]
    where = next((file.name for file in find_images(target) if range_at(file.data, variable)), "")
    allocator = Mimalloc(target, engine, found.layout, where, spans, found.pages, found.own, found.problems)
    allocator.forgetful = found.forgetful
    return allocator


def _make_with_segments(target: Target, engine: Engine, found: segments.SegmentInstance) -> Mimalloc:
    tids = map_thread_ids(target)
    labels = {0: "abandoned"}
    for segment in found.segments:
        thread = segment.thread
        labels.setdefault(thread, f"thread {tids[thread]}" if thread in tids else f"thread at {thread:#x}")
    spans = [MimallocSpan(s.start, s.end, labels[s.thread], s.header) for s in found.segments]
    unused = arenas.find_spare(target, engine, [Range(s.start, s.end) for s in found.segments])
    spans += [MimallocSpan(r.start, r.end, "free in arenas", 0) for r in unused]
    pages = [page._replace(arena=labels[page.owner]) for segment in found.segments for page in segment.pages]
    files = find_images(target)
    homes = sorted({page.heap for page in pages if page.heap})
    where = next((file.name for home in homes for file in files if file.name and range_at(file.data, home)), "")
    return Mimalloc(target, engine, found.layout, where, spans, pages, [], found.problems)
