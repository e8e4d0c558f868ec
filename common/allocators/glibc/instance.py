"""One glibc malloc as an Allocator: its heaps, thread caches, free lists and totals."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Optional

from findleaks.allocators.base import Allocator, Arena, Cache, Heap, Problem, Spare, ThreadCache
from findleaks.allocators.glibc import caches, in_flight, prev_inuse, spans, tcache, version
from findleaks.allocators.glibc import lists as free_lists
from findleaks.allocators.glibc.arenas import GlibcSpan, find_heaps, read_top
from findleaks.allocators.glibc.blame import Judge
from findleaks.allocators.glibc.caches import FreeLists
from findleaks.allocators.glibc.layout import GlibcLayout
from findleaks.allocators.glibc.locate import GlibcInstance
from findleaks.allocators.glibc.mmapped import size_agrees
from findleaks.allocators.glibc.reconcile import NO_TOTALS, ArenaBalance, balance_span, check_arenas
from findleaks.allocators.glibc.walk import walk_span
from findleaks.allocators.mappings import MappedChunk, group_adjacent, make_mapped_heap
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State, Totals
from findleaks.formatting import format_count
from findleaks.target.base import Piece, Range, Target

if TYPE_CHECKING:
    from findleaks.allocators.retention import FreeMemory, Retention
    from findleaks.target.runs import Runs


class Glibc(Allocator):
    """One glibc malloc; see Allocator.

    The constructor finds the spans of thread arenas. `claim_main` and `claim_mapped` find the main
    arena's spans and the mmapped chunks. They are called later, because the memory without an owner
    is known only after all instances are found."""

    name = "glibc"
    usual_file = "libc.so"
    remainder_words = 2
    free_footer_words = 1
    release_call = "malloc_trim(0)"
    cache_setting = "GLIBC_TUNABLES=glibc.malloc.tcache_count=0"
    version = ""

    def __init__(self, target: Target, engine: Engine, instance: GlibcInstance) -> None:
        self.target = target
        self.engine = engine
        self.instance = instance
        self.memory = Memory(target)
        self.granule = instance.layout.align
        self.where = version.get_file_name(instance.region)
        self.problems: list[Problem] = []
        self.mapped: list[MappedChunk] = []
        self.checked: dict[str, int] = {}
        # memory that no instance owned when mmapped chunks were searched for
        self.unclaimed: list[Range] = []
        self.tcaches = tcache.Tcaches([], [])
        self.mangled: Optional[bool] = None
        self.judge = Judge(self.memory, engine)
        # problems of lists in thread caches whose first block has a wrong size, with this block
        self.misfits: list[tcache.Misfit] = []
        self.balances: list[ArenaBalance] = []  # one for each arena, filled by `mark_blocks`
        # (cache, number of the list, blocks)
        self.kept: list[tuple[tcache.Tcache, int, array[int]]] = []
        self._heaps: list[Heap] = []
        # by a span's start: the index into which it was walked
        self._walked: dict[int, Blocks] = {}
        self.spans: list[GlibcSpan] = []
        if instance.ring_problem:
            self.problems.append(Problem(instance.main.address, f"{instance.ring_problem}: heaps of other arenas are not read"))
        # The address space that a heap reserves if glibc.malloc.hugetlb enables huge pages
        # (arena.c, heap_max_size).
        huge_reserve = 4 * (self.par("hp_pagesize") or 0)
        for arena in instance.arenas:
            read_top(self.memory, arena)
            if arena.number:
                find_heaps(self.memory, arena, huge_reserve, self.problems)
                self.spans += spans.find_thread_spans(self.memory, arena, self.problems)
        self._index()

    def par(self, name: str) -> Optional[int]:
        """Read a field of mp_ (see ParLayout.offset); None if mp_ is unknown or does not have the
        field."""
        layout = self.instance.par_layout
        offset = layout.offset(name) if layout is not None else -1
        if offset < 0:
            return None
        read = self.memory.int32 if name in ("n_mmaps", "no_dyn_threshold") else self.memory.word
        return read(self.instance.par + offset)

    def claim_main(self, free: Sequence[Range]) -> None:
        """Find the main arena's spans in `free`, anonymous memory that no instance has claimed
        yet."""
        if self.instance.lost_spans is not None:
            self.spans += self.instance.lost_spans
            what = "main_arena is in the missing part of the core: freed blocks in its fastbins count as in use"
            # The heaps of an arena whose heap_info is damaged are not read.
            first = min((span.start for span in self.spans), default=self.instance.arenas[-1].address)
            self.problems.append(Problem(first, what, False))
            self._index()
            return
        base = self.par("sbrk_base") or 0
        self.spans += spans.find_main_spans(self.memory, self.engine, self.instance.main, base, free, self.problems)
        self._index()

    def claim_mapped(self, mapped: Sequence[MappedChunk]) -> None:
        """Take `mapped` as this instance's mmapped chunks, and compare them with the counts in
        mp_."""
        self.mapped = list(mapped)
        count, size = self.par("n_mmaps"), self.par("mmapped_mem")
        found = sum(m.end - m.start for m in self.mapped)
        address = self.instance.par or self.instance.main.address
        if count is None or size is None:
            if self.mapped:
                self.problems.append(Problem(address, f"mp_ was not found: {len(self.mapped):,} mmapped blocks are unchecked", False))
        elif len(self.mapped) != count or not size_agrees(self.mapped, size, self.memory.size):
            # If more blocks were found than mp_ counts, other memory looks like a block. If fewer
            # were found, a header was overwritten, or memory is missing.
            lost = len(self.mapped) < count and not (self.target.unread or self.target.truncated)
            what = f"mp_ counts {count:,} mmapped blocks, {size:,} bytes; {len(self.mapped):,} were found, {found:,} bytes"
            self.problems.append(Problem(address, what, lost))

    def find_caches(self) -> None:
        """Find the thread caches, and decide whether links are mangled."""
        word = self.memory.size
        self.tcaches = tcache.find_tcaches(self, self.target.threads()) if self.spans else self.tcaches
        for cache in self.tcaches.caches:
            whose = f"of thread {cache.tid} " if cache.tid else ""
            for what, index, misfit in cache.bad:
                place = Range(cache.head(index), cache.head(index) + word) if misfit else None
                problem = Problem(cache.address, f"thread cache {whose}at {cache.address:#x}: {what}", damaged=place)
                self.problems.append(problem)
                self.misfits += [tcache.Misfit(problem, cache, index, misfit)] if misfit else []
        blind = bool(self.spans) and not self.target.threads()
        if self._has_thread_caches() and (blind or self.tcaches.unread):
            unread = format_count(len(self.tcaches.unread), "thread")
            why = "no thread is known, so no thread cache was found" if blind else f"the caches of {unread} were not found"
            what = f"{why}: freed blocks in them count as in use"
            self.problems.append(Problem(self.instance.main.address, what, False))
        lists = [(head, 0, length) for cache in self.tcaches.caches for _, head, length in cache.lists if self.owns(head)]
        lists += [(head, 2 * word, -1) for arena in self.instance.arenas for head in arena.fastbins if self.owns(head + 2 * word)]
        self.mangled = free_lists.are_links_mangled(self, lists) if lists else None
        self.version = self._version()

    def _has_thread_caches(self) -> bool:
        """Whether there may be thread caches: since 2.26, unless glibc.malloc.tcache_count is 0."""
        layout = self.instance.par_layout
        return self.par("tcache_count") != 0 and (layout is None or layout.tcache_bins >= 0)

    def _version(self) -> str:
        text = version.read_banner(self.target, self.instance.region) or version.parse_name(self.instance.region)
        if text:
            return text
        layouts: list[Optional[GlibcLayout]] = [self.instance.layout, self.instance.par_layout]
        layouts += [cache.layout for cache in self.tcaches.caches[:1]]
        layouts += [arena.heap_info for arena in self.instance.arenas[1:2]]
        return version.derive_from_layouts([layout for layout in layouts if layout], self.mangled)

    def heaps(self) -> list[Heap]:
        if not self._heaps:
            for span in self.spans:
                self._heaps.append(Heap(span.start, span.end, span.arena.name, partial(self._walk, span), span.metadata, span.foreign))
            for run in group_adjacent(self.mapped):
                self._heaps.append(make_mapped_heap(run, 2 * self.memory.size))
                self._heaps[-1].metadata = [Range(mapped.start, mapped.chunk + 2 * self.memory.size) for mapped in run]
            self._heaps.sort(key=lambda heap: heap.start)
        return self._heaps

    def _walk(self, span: GlibcSpan, blocks: Blocks) -> None:
        self._walked[span.start] = blocks
        walk_span(self, blocks, span)

    def mark_blocks(self, blocks: Blocks) -> None:
        """Mark blocks as cached, free or metadata, and compare totals (see Allocator)."""
        for span in self.spans:
            for index in {id(one): one for one in (blocks, self.walked_blocks(span, blocks))}.values():
                for fence in span.last_free:
                    self._mark_free_before(index, fence)
                if span.top_unknown:
                    self._mark_free_before(index, span.stop)
                for chunk in prev_inuse.settle_headers(self, span, index):
                    self._mark_free_before(index, chunk)
        walked = [balance_span(self.walked_blocks(span, blocks), self.memory.size, span) for span in self.spans]
        unknown = self._mark(blocks)
        for address, what in unknown[:20]:
            self.problems.append(
                Problem(address, f"{what} at {address:#x} is not a block: a free list, or the heap near this address, is corrupt")
            )
        if len(unknown) > 20:
            self.problems.append(Problem(unknown[20][0], f"and {len(unknown) - 20:,} more"))
        damaged = {problem.damaged.start for problem in self.problems if problem.damaged}
        # If a damaged size word was reported, it explains a list with a wrong size and a wrong sum
        # of its arena, so these are not reported.
        explained = {id(one.problem) for one in self.misfits if one.first - self.memory.size in damaged}
        self.problems[:] = [problem for problem in self.problems if id(problem) not in explained]
        wrong = [span.arena for span in self.spans if any(span.first <= place < span.end for place in damaged)]
        self.balances = check_arenas(self.instance.arenas, walked, self.problems, wrong)
        counted: dict[str, list[list[Totals]]] = {}
        for heap in self.heaps():
            counted.setdefault(heap.arena, []).append(heap.count(blocks) if heap.start in self._walked else NO_TOTALS)
        for held in self.balances:
            held.count(counted.get(held.arena.name, []))

    def walked_blocks(self, span: GlibcSpan, blocks: Blocks) -> Blocks:
        """Return the index that contains the span's blocks. It is a separate one if the blocks
        contain heaps of other allocators."""
        return self._walked.get(span.start, blocks)

    def _mark(self, blocks: Blocks) -> list[tuple[int, str]]:
        """Mark cached and free blocks, and thread caches. Return (address, description) of entries
        that are not a block."""
        cached: array[int] = array("Q")
        for cache in self.tcaches.caches:
            for index, head, length in cache.lists:
                entries, problem = free_lists.follow_list(self, head, max(length, free_lists.SHORT))
                cached += entries
                self.kept.append((cache, index, entries))
                if problem and (entries or not any(one.cache is cache and one.number == index for one in self.misfits)):
                    whose = f" of thread {cache.tid}" if cache.tid else ""
                    what = f"thread cache{whose}, list {index}: after {len(entries)} entries {problem}"
                    if entries:
                        what += f"; the link to it is in the freed block at {entries[-1]:#x}"
                    link = entries[-1] if entries else cache.head(index)
                    self.problems.append(Problem(head, what, damaged=Range(link, link + self.memory.size)))
        unknown = [(address, "a thread cache's entry") for address in blocks.set_state(cached, State.CACHED)]
        for arena in self.instance.arenas:
            for number, entries, problem in free_lists.follow_fastbins(self, arena):
                if problem:
                    what = f"fastbin {number} of {arena.name} is corrupt after {len(entries)} chunks: {problem}"
                    link = entries[-1] if entries else arena.address + arena.layout.fastbin + number * self.memory.size
                    self.problems.append(Problem(arena.fastbins[number], what, damaged=Range(link, link + self.memory.size)))
                unknown += [(address, f"a fastbin entry of {arena.name}") for address in blocks.set_state(entries, State.FREE)]
        own = [cache.address for cache in self.tcaches.caches]
        unknown += [(address, "a thread cache") for address in blocks.set_state(own, State.METADATA)]
        return unknown

    def _mark_free_before(self, blocks: Blocks, chunk: int) -> None:
        """Mark the block before `chunk` free. This is for a fencepost or an unknown top, which
        shows the state of that block only after the walk."""
        index = blocks.at_or_after(chunk + 2 * self.memory.size) - 1
        if index >= 0 and blocks.state(index) == State.IN_USE and blocks.address(index) + blocks.size(index) == chunk + self.memory.size:
            blocks.set_state([blocks.address(index)], State.FREE)
            blocks.resize(index, blocks.size(index) - self.memory.size)

    def metadata(self) -> list[Range]:
        main = self.instance.main
        ranges = [Range(main.address, main.end)] if main.address else []
        if self.instance.par_layout:
            ranges.append(Range(self.instance.par, self.instance.par + self.instance.par_layout.size))
        return sorted(ranges)

    def list_reserved(self) -> list[Range]:
        """Return the ends of thread arenas' heaps that are not yet accessible (see Allocator)."""
        heaps = (heap for arena in self.instance.arenas for heap in arena.heaps)
        return [Range(heap.limit, heap.reserve_end) for heap in heaps if heap.limit < heap.reserve_end]

    def summary(self) -> dict[str, object]:
        """Return arenas with their balance, mmapped chunks and thread caches (see Allocator)."""
        return {
            "arenas": [entry.json() for entry in self.balances],
            "mmapped": {
                "blocks": len(self.mapped),
                "bytes": sum(m.end - m.start for m in self.mapped),
                "counted_blocks": self.par("n_mmaps"),
                "counted_bytes": self.par("mmapped_mem"),
            },
            "thread_caches": len(self.tcaches.caches),
            "main_arena": hex(self.instance.main.address) if self.instance.main.address else None,
            "mp": hex(self.instance.par) if self.instance.par else None,
            "reconciled": not self.problems,
        }

    def locate(self, address: int) -> str:
        main = self.instance.main
        if main.address <= address < main.end:
            return "main_arena"
        if self.instance.par_layout and self.instance.par <= address < self.instance.par + self.instance.par_layout.size:
            return "mp_"
        span = self._span(address)
        if span is None:
            return ""
        for cache in self.tcaches.caches:
            if cache.address <= address < cache.address + cache.layout.size:
                index = (address - cache.head(0)) // self.memory.size
                return f"list {index} of {cache.name}" if index >= 0 else cache.name
        arena = span.arena
        if arena.top <= address < arena.top + arena.top_size:
            return f"top of {arena.name}"
        if address < span.first:
            return f"arena header of {arena.name}" if arena.address <= address < arena.end else "heap_info"
        if any(part.start <= address < part.end for part in span.foreign):
            return f"unread part of {arena.name}"
        if address >= span.start + span.system:
            return f"unused tail of a heap of {arena.name}"
        return "fencepost" if any(part.start <= address < part.end for part in span.metadata) else ""

    def blocks_in_flight(self, words: Sequence[int], blocks: Blocks) -> Iterator[int]:
        return in_flight.find_blocks_in_flight(self, words, blocks)

    def is_changing(self, problem: Problem, words: Sequence[int], blocks: Blocks) -> bool:
        return in_flight.is_changing(self, problem, words, blocks)

    def verify(self, blocks: Blocks) -> Iterator[Optional[Problem]]:
        from findleaks.allocators.glibc.verify import verify  # only `verify` needs it

        return verify(self, blocks)

    def caches(self, blocks: Blocks) -> list[Cache]:
        """Return a class for each size of a thread cache's list, and ranges above (see
        Allocator)."""
        return caches.list_caches(self, blocks)

    def arenas(self, blocks: Blocks) -> list[Arena]:
        return caches.list_arenas(self, self._listed, blocks)

    def find_releasable(self, blocks: Blocks) -> Runs:
        from findleaks.allocators.glibc.trim import predict_trim  # only `map` and `verdict` need it

        return predict_trim(self, blocks)

    def retention(self, free: FreeMemory) -> Retention:
        from findleaks.allocators.glibc.retention import explain_retention

        return explain_retention(free, self.par)

    def thread_caches(self, blocks: Blocks) -> list[ThreadCache]:
        return caches.list_thread_caches(self, blocks)

    def read_counters(self) -> dict[str, int]:
        """Return the figures of mallinfo2 (see Allocator)."""
        return caches.sum_counters(self, self._listed)

    @cached_property
    def _listed(self) -> list[FreeLists]:
        return caches.follow_lists(self)

    def spare(self, blocks: Blocks) -> list[Spare]:
        """Return each arena's top, and the tails of thread arenas' heaps that were returned to the
        kernel (see Allocator)."""
        found = []
        for span in self.spans:
            top, size = span.arena.top, span.arena.top_size
            if size and span.first <= top < span.end:
                found.append(Spare(top + 2 * self.memory.size, min(top + size, span.end), "top", span.arena.name))
            if span.start + span.system < span.end:
                found.append(Spare(span.start + span.system, span.end, "tail", span.arena.name))
        return [one for one in found if one.start < one.end]

    def owns(self, address: int) -> bool:
        """Return whether `address`, a pointer that malloc returned, is among this instance's
        chunks."""
        span = self._span(address)
        return span is not None and span.first < address < span.stop

    def _span(self, address: int) -> Optional[GlibcSpan]:
        at = bisect_right(self._starts, address) - 1
        return self.spans[at] if at >= 0 and address < self.spans[at].end else None

    def _index(self) -> None:
        self.spans.sort(key=lambda span: span.start)
        self._starts = [span.start for span in self.spans]

    @cached_property
    def pieces(self) -> list[Piece]:
        """The memory of all spans, ascending."""
        return [piece for span in self.spans for piece in self.target.pieces(span.start, span.end)]

    @cached_property
    def chunk_pieces(self) -> tuple[Piece, ...]:
        """The memory of all chunks, ascending, without the structures of arenas."""
        return spans.read_pieces(self.memory, self.spans)

    @cached_property
    def listed_chunks(self) -> list[int]:
        """The chunks on free lists, ascending. A walk may resume at one of them after
        corruption."""
        found: set[int] = set()
        for arena in self.instance.arenas:
            found.update(free_lists.find_bin_chunks(self.memory, arena))
        return sorted(found)
