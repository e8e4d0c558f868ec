"""Session: a target, and everything computed from it on demand, until the process runs on."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Optional, Protocol, TypeVar, cast

from findleaks.allocators.directory import Directory, build
from findleaks.allocators.in_flight import Inside, held, threads_inside
from findleaks.block_types import Types
from findleaks.engine import load as engines
from findleaks.engine.contract import Engine, Graph
from findleaks.engine.terms import Heuristic, Kind, Totals
from findleaks.errors import Interrupted, UnreadableMemory
from findleaks.graph.conventions import NO_CONVENTIONS, HeuristicMatcher, Learned, heuristic_matcher, learn_conventions
from findleaks.graph.reserved import Reserved, reserved_by_owner
from findleaks.graph.roots import library_words, register_words, root_ranges, stack_region
from findleaks.graph.unread import Doubtful, Unread, doubtful, unread
from findleaks.injection.own_memory import own_memory
from findleaks.target.base import BEGINNING, Piece, Range, Target
from findleaks.target.ranges import blanked, inside, intersection, nonzero_pieces, subtract
from findleaks.target.residency.presence import Presence
from findleaks.target.tags import untagged

if TYPE_CHECKING:
    from findleaks.allocators.sites import Sites
    from findleaks.debuginfo.files import DebugFiles
    from findleaks.debuginfo.members import Members
    from findleaks.debuginfo.sources import Sources
    from findleaks.engine.dominators import Dominators
    from findleaks.runtimes.base import Runtime

Result = TypeVar("Result")

SLICE = 1 << 20  # blocks that a thread of the C kernel visits between two checks for Ctrl-C: 50 ms
PURE_SLICE = 1 << 15  # the same for the engine in Python
MAX_READS = 5  # most reads of a live process while allocator data is inconsistent
PAUSE = 0.003  # seconds that the process runs between two reads


class Progress(Protocol):
    """Progress callback: a phase ("reading the heaps"), and the part done, 0 to 1 (0: unknown)."""

    def __call__(self, phase: str, part: float) -> None: ...

    def clear(self) -> None:
        """The work is done; output follows."""
        ...


class Session:
    """What every command works on: computed on first use, and kept. Raises Interrupted when the
    target reports that the user asked to stop."""

    def __init__(self, target: Target, engine: Optional[Engine] = None, progress: Optional[Progress] = None) -> None:
        self.target = target
        self.engine = engine or engines.load(target.arch)
        self.progress = progress
        self.seconds: dict[str, float] = {}
        self._timed_seconds = 0.0  # of all work that was ever timed
        self.inside: Sequence[Inside] = []  # threads stopped in an allocator; set by `directory`
        self.reads = 1
        self.kept: Optional[dict[str, object]] = None  # snapshots in a debugger, by name
        self.reopen: Optional[Callable[[], Session]] = None  # reads the same process again
        self.wait: Callable[[float], None] = lambda seconds: time.sleep(seconds)  # between reads
        self.presence: Optional[Presence] = None  # once a command has asked: audit/residency.py
        self._results: dict[Hashable, object] = {}
        self._graphs: dict[Heuristic, Graph] = {}
        self._learned: dict[Heuristic, Learned] = {}
        self._classified_graphs: list[Graph] = []  # graphs that are also marked

    @cached_property
    def directory(self) -> Directory:
        """Every allocator and every block."""
        with self._timed("walk"):
            while True:
                self.report_progress("finding the heaps", 0.0)
                made = build(self.target, self.engine)
                self.inside = threads_inside(self.target, made.allocators, made.blocks)
                made.excuse(self.inside)
                if not made.problems or not self.read_again():
                    return made

    def once(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        """What `compute` returns, kept under `key` until the process is read again."""
        if key not in self._results:
            self._results[key] = compute()
        return cast(Result, self._results[key])

    @contextmanager
    def _timed(self, work: str) -> Iterator[None]:
        """Time `work`, less what was timed within it."""
        began, before = time.perf_counter(), self._timed_seconds
        yield
        took = time.perf_counter() - began - (self._timed_seconds - before)
        self.seconds[work] = took
        self._timed_seconds += took

    def read_again(self) -> bool:
        """Let a live process run for PAUSE seconds if a thread inside an allocator may have made
        data inconsistent. Drops all that was computed. False if nothing was done."""
        if not self.inside or self.reads >= MAX_READS or not self.target.run_on(PAUSE):
            return False
        self.reads += 1
        self._drop_computed()
        return True

    def _drop_computed(self) -> None:
        for name, attribute in vars(Session).items():
            if isinstance(attribute, cached_property):
                self.__dict__.pop(name, None)
        self._results.clear()
        self._graphs.clear()
        self._learned.clear()
        self._classified_graphs.clear()

    @cached_property
    def in_flight(self) -> dict[int, Inside]:
        """Blocks in use that threads inside an allocator work on, each with a thread. The thread
        may hold the address in the allocator's own form."""
        # Before `self.inside`, which `directory` sets.
        blocks = self.directory.blocks
        return held(self.inside, blocks)

    @cached_property
    def roots(self) -> list[Range]:
        """Root memory, sorted and disjoint. Registers are further roots."""
        return subtract(self.root_memory, self.unread.ranges())

    @cached_property
    def root_memory(self) -> list[Range]:
        """`roots`, and what threads have in memory but will not read again."""
        nothing = [part for one in self.reserved for part in one.ranges]
        claimed = sorted([*self.directory.claimed(), *nothing, *self._own_memory()])
        return root_ranges(self.target, self.engine, claimed, self.stack_at)

    def _own_memory(self) -> Iterator[Range]:
        def read(address: int, size: int) -> bytes:
            try:
                return self.target.read(address, size)
            except UnreadableMemory:
                return b""

        return (Range(one.address, one.address + one.size) for one in own_memory(self.target.regions(), read))

    def stack_at(self, sp: int) -> Optional[Range]:
        """The mapping with `sp`, if it is certain to be a stack only; see graph/roots.py."""
        mixed = [part for runtime in self.runtimes for part in runtime.stack_memory()]
        return None if any(start <= sp < end for start, end in mixed) else stack_region(self.target.regions(), sp)

    @cached_property
    def reserved(self) -> Sequence[Reserved]:
        """Address ranges that allocators and runtimes reserved for growth and that hold nothing."""
        owners = [(one.title, one.reserved()) for one in self.directory.allocators]
        return reserved_by_owner(self.target, [*owners, *((one.name, one.reserved()) for one in self.runtimes)])

    @cached_property
    def unread(self) -> Unread:
        """What threads have in registers and below their stack pointers but will not read again."""
        with self._timed("unread"):
            suspects = self.doubtful
            self.report_progress("reading what threads do next", 0.0)
            return unread(self.target, self.directory.blocks, suspects)

    @cached_property
    def doubtful(self) -> Doubtful:
        """Words of which only code shows whether threads will read them again."""
        with self._timed("doubtful"):
            return doubtful(self.target, self.engine, self.directory.blocks)

    def register_words(self) -> list[int]:
        """Register words that are roots, and other root words that are not in memory."""
        return register_words(self.target, self.unread, self._library_words)

    @cached_property
    def _library_words(self) -> list[int]:
        return library_words(self.target)

    @cached_property
    def customary(self) -> tuple[Heuristic, list[int]]:
        """Heuristics for interior pointers that allocators found always need (references to
        Python's objects), and type addresses; see Allocator.heuristics."""
        asked = [allocator.heuristics(self.heap_ranges()) for allocator in self.directory.allocators]
        heuristics = Heuristic.NONE
        for one, _ in asked:
            heuristics |= one
        return heuristics, sorted({address for _, types in asked for address in types})

    @cached_property
    def runtimes(self) -> Sequence[Runtime]:
        """Every managed runtime in the process."""
        from findleaks.runtimes.directory import find  # few commands need it

        return find(self.target, self.engine, self.directory)

    @cached_property
    def sites(self) -> Sites:
        """The allocation stacks that were recorded in the process, those of runtimes first."""
        from findleaks.allocators.sites import Sites  # few commands need it

        with self._timed("sites"):
            blocks = self.directory.blocks
            found = [one for runtime in self.runtimes for one in runtime.recordings()]
            return Sites([*found, *(one for allocator in self.directory.allocators for one in allocator.recordings(blocks))])

    @property
    def recorded(self) -> bool:
        """Whether there may be `sites`; known without reading them."""
        return any(one.recorded for one in self.runtimes) or any(one.recorded for one in self.directory.allocators)

    @cached_property
    def dead(self) -> Sequence[Range]:
        """Parts of managed heaps without live objects, sorted and disjoint."""
        if self.runtimes:
            self.report_progress("reading managed heaps", 0.0)
        return sorted(part for runtime in self.runtimes for part in runtime.dead())

    @cached_property
    def types(self) -> Types:
        return Types(self.target)

    @cached_property
    def debug_files(self) -> DebugFiles:
        """Files with debug information, opened on first use."""
        from findleaks.debuginfo.files import DebugFiles  # few commands need it

        return DebugFiles(self.target, self.report_progress)

    @cached_property
    def sources(self) -> Sources:
        """The source of code: files, lines and inlined functions, from debug information."""
        from findleaks.debuginfo.sources import Sources

        return Sources(self.target, lambda: self.debug_files, self.report_progress)

    @cached_property
    def members(self) -> Members:
        """Types of variables and names of their members, from debug information."""
        from findleaks.debuginfo.members import Members

        return Members(self.target, self.debug_files)

    def graph(self, heuristics: Heuristic = Heuristic.AUTO) -> Graph:
        """The reference graph of all blocks, marked and classified."""
        made = self._graphs.pop(heuristics, None) or self._scanned(heuristics)
        # The last key of the dictionary is the one of `latest`.
        self._graphs[heuristics] = made
        return self._classified(made)

    @property
    def latest(self) -> Graph:
        """The graph asked for last, with any heuristics: commands agree with what `find` showed."""
        return self._classified(self.references)

    @property
    def references(self) -> Graph:
        """`latest`, but perhaps not marked and classified yet: for references and ownership."""
        if not self._graphs:
            self._graphs[Heuristic.AUTO] = self._scanned(Heuristic.AUTO)
        return next(reversed(self._graphs.values()))

    @property
    def learned(self) -> Learned:
        """The conventions for interior pointers that `latest` learned from the program."""
        _ = self.latest
        return self._learned.get(next(reversed(self._graphs)), NO_CONVENTIONS)

    def pieces(self, ranges: Sequence[Range], phase: str, dead: bool = False, whole: bool = False) -> Iterator[Piece]:
        """Memory of these ranges, pointers without tags. Dead parts of managed heaps are zeros
        unless `dead`. Long runs of zeros are left out unless `whole`. Ctrl-C is checked for."""
        total = sum(end - start for start, end in ranges) or 1
        done = 0
        for start, end in ranges:
            for piece in self.target.pieces(start, end) if whole else nonzero_pieces(self.target, start, end, BEGINNING):
                self.report_progress(phase, (done + piece.address - start) / total)
                piece = untagged(piece) if self.target.tagged else piece
                yield piece if dead else blanked(piece, self.dead)
            done += end - start

    @property
    def budget(self) -> int:
        """Blocks that the engine visits between two checks for Ctrl-C: with threads, more."""
        return PURE_SLICE if self.engine.name == "pure" else SLICE * min(self.engine.threads, 4)

    def computed(self, tree: Dominators, phase: str) -> Dominators:
        """`tree`, computed, with progress and checks for Ctrl-C."""
        while not tree.compute(self.budget):
            self.report_progress(phase, tree.progress())
        return tree

    def heap_ranges(self) -> list[Range]:
        return [Range(owned.start, owned.end) for owned in self.directory.heaps]

    def done(self) -> None:
        """Remove the progress line: the work is done, output follows."""
        if self.progress is not None:
            self.progress.clear()

    def close(self) -> None:
        """Close the target, and free what was computed of it: who takes several moments keeps the
        first session until the last."""
        self.target.close()
        self._drop_computed()

    @property
    def ownership(self) -> Graph:
        """Graph of who holds what, not marked: `references`, or one without the links of a runtime
        that chains its objects in lists of its own (CPython's collector)."""
        return self._without_links or self.references

    @cached_property
    def _without_links(self) -> Optional[Graph]:
        links = [made for made in (runtime.links() for runtime in self.runtimes) if made is not None]
        return self._scanned(Heuristic.NONE, links[0]) if links else None

    @cached_property
    def _records(self) -> Optional[bytearray]:
        return next((made for made in (runtime.records() for runtime in self.runtimes) if made is not None), None)

    def _scanned(self, heuristics: Heuristic, links: Optional[bytearray] = None) -> Graph:
        blocks, unread = self.directory.blocks, self.doubtful.all_dead or self.unread
        with self._timed("scan"):
            vtables = self.types.vtables() if heuristics & Heuristic.MULTIPLE_INHERITANCE else ()
            customary, types = self.customary
            graph = self.engine.graph(blocks, heuristics | customary, vtables, types)
            excluded = links if links is not None else self._records
            if excluded is not None:
                graph.exclude_links(excluded)
            for piece in self.pieces(self.heap_ranges(), "reading the heaps"):
                graph.scan_blocks(piece)
            for piece in self.pieces(subtract(self.root_memory, unread.ranges()), "reading the roots"):
                graph.scan_roots(piece)
            graph.root_words([*register_words(self.target, unread, self._library_words), *self._thread_blocks(), *self.in_flight])
            graph.settle()
        return graph

    def _with_doubtful(self, graph: Graph) -> Graph:
        """`graph` with all roots: also those doubtful words that threads will read again."""
        if self.doubtful.all_dead is not None:
            for piece in self.pieces(intersection(self.roots, self.doubtful.all_dead.ranges()), "reading the roots"):
                graph.scan_roots(piece)
            graph.root_words(self.register_words())
        return graph

    def path(self, index: int) -> list[int]:
        """A shortest chain of block indices from one a root refers to, [] if none reaches it; see
        Graph.path. Where one exists in `ownership`, it is of that graph."""
        return self._with_doubtful(self.ownership).path(index) or self._with_doubtful(self.latest).path(index)

    def _classified(self, graph: Graph) -> Graph:
        if graph in self._classified_graphs:
            return graph
        with self._timed("mark"):
            graph = self._marked(graph)
            while not graph.classify(self.budget):
                self.report_progress("sorting the lost", 0.0)
        self._classified_graphs.append(graph)
        return graph

    def _marked(self, graph: Graph) -> Graph:
        """The marked graph; if a heuristic explains most interior pointers, a new one with that."""
        self._mark(graph)
        asked = next((heuristics for heuristics, one in self._graphs.items() if one is graph), Heuristic.NONE)
        if not asked & Heuristic.AUTO:
            return graph
        learned = self._learn_conventions(graph)
        if learned.heuristics:
            before = graph.totals(Kind.POSSIBLE)
            graph = self._graphs[asked] = self._scanned(asked | learned.heuristics)
            self._mark(graph)
            again = self._learn_conventions(graph)
            after = graph.totals(Kind.POSSIBLE)
            held = Totals(before.blocks - after.blocks, before.bytes - after.bytes)
            learned = again._replace(heuristics=learned.heuristics, held=held)
        self._learned[asked] = learned
        return graph

    def _mark(self, graph: Graph) -> None:
        while not graph.mark_starts(self.budget):
            self.report_progress("following pointers", 0.0)
        if not graph.holds(self.doubtful.words):
            self._with_doubtful(graph)
        while not graph.mark(self.budget):
            self.report_progress("following pointers", 0.0)

    def _learn_conventions(self, graph: Graph) -> Learned:
        return learn_conventions(graph, self.directory.blocks, self.engine, self._heuristic_matcher, self.budget, self.report_progress)

    @cached_property
    def _heuristic_matcher(self) -> HeuristicMatcher:
        """Tests which of memcheck's heuristics fit a block, by its contents."""
        target = self.target
        vtables = self.types.vtables()

        def read(address: int, length: int) -> Optional[int]:
            try:
                return int.from_bytes(target.read(address, length), target.arch.byteorder)
            except UnreadableMemory:
                return None

        return heuristic_matcher(target.arch.word, read, lambda value: inside(vtables, value) is not None)

    def _thread_blocks(self) -> list[int]:
        """Starts of the blocks that threads run on: stacks of coroutines, alternate signal stacks,
        control blocks (musl's ld.so allocates the main thread's with malloc if it has much
        thread-local storage). They are in use, but perhaps only an interior stack or thread pointer
        refers to them."""
        blocks = self.directory.blocks
        found = (blocks.find(address) for thread in self.target.threads() for address in (thread.sp, thread.thread_pointer))
        return [blocks.address(index) for index in found if index >= 0]

    def report_progress(self, phase: str, part: float) -> None:
        """Report progress (part 0: unknown). Raises Interrupted if the user asked to stop."""
        if self.target.interrupted():
            raise Interrupted
        if self.progress is not None:
            self.progress(phase, part)
