"""Session: a target, and everything computed from it on demand, until the process runs on."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Optional, Protocol, TypeVar, cast

from findleaks.allocators.directory import Directory, build_directory
from findleaks.allocators.in_flight import ThreadInside, find_blocks_in_flight, find_threads_inside
from findleaks.block_types import Types
from findleaks.engine import load as engines
from findleaks.engine.contract import Engine, Graph
from findleaks.engine.terms import Heuristic, Kind
from findleaks.errors import Interrupted, UnreadableMemory
from findleaks.graph.conventions import Learned
from findleaks.graph.disguises import Disguised
from findleaks.graph.reserved import Reserved, reserved_by_owner
from findleaks.graph.roots import dead_ranges, kernel_words, library_words, register_words, root_ranges, root_regions, stack_region
from findleaks.graph.unread import Doubtful, Unread, doubtful, unread
from findleaks.injection.own_memory import own_memory
from findleaks.session.host import Host
from findleaks.session.interior_structures import Structures
from findleaks.session.reference_graphs import ReferenceGraphs
from findleaks.session.uses import Uses
from findleaks.target.base import BEGINNING, Piece, Range, Target
from findleaks.target.ranges import blank_out, merge_ranges, nonzero_pieces, subtract
from findleaks.target.residency.presence import Presence
from findleaks.target.tags import remove_tags

if TYPE_CHECKING:
    from findleaks.allocators.sites import Sites
    from findleaks.debuginfo.files import DebugFiles
    from findleaks.debuginfo.members import Members
    from findleaks.debuginfo.sources import Sources
    from findleaks.engine.dominators import Dominators
    from findleaks.runtimes.base import ObjectTypes, ReferenceCounts, Runtime
    from findleaks.target.kernel_references import KernelReference

Result = TypeVar("Result")

SLICE = 1 << 20  # blocks that a thread of the C engine visits between two checks for Ctrl-C: 50 ms
PURE_SLICE = 1 << 15  # the same for the engine in Python
MAX_READS = 5  # most reads of a live process while allocator data is inconsistent
PAUSE = 0.003  # seconds that the process runs between two reads


_SHARED = ("unread", "roots", "sites", "debug_files", "sources", "members")
"""Results that do not depend on which interior pointers count."""


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
        self.inside: Sequence[ThreadInside] = []  # threads in an allocator; set by `directory`
        self.reads = 1
        self.host: Host = Host()
        self.presence: Optional[Presence] = None  # once a command has asked: audit/residency.py
        self.uses = Uses()
        self.heuristics = Heuristic.AUTO  # interior pointers that count as references
        self._origin: Optional[Session] = None  # see with_heuristics
        self.is_closed = False
        self._results: dict[Hashable, object] = {}
        self.graphs = ReferenceGraphs(self, self.heuristics)

    @cached_property
    def directory(self) -> Directory:
        """Every allocator and every block."""
        with self.timed("walk"):
            while True:
                self.report_progress("finding the heaps", 0.0)
                made = build_directory(self.target, self.engine)
                self.inside = find_threads_inside(self.target, made.allocators, made.blocks)
                made.remove_half_changed(self.inside)
                if not made.problems or not self.read_again():
                    return made

    def begin_command(self) -> None:
        """A command begins: warnings and times are those of its own work."""
        self.uses.begin()
        self.seconds.clear()

    def once(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        """What `compute` returns, kept under `key` until the process is read again. A string as
        the key names what a command uses: see uses.py."""
        if key in self._results:
            self.uses.repeat(key)
        else:
            with self.uses.recorded(key):
                self._results[key] = compute()
        return cast(Result, self._results[key])

    def with_heuristics(self, heuristics: Heuristic) -> Session:
        """The same moment, with other interior pointers that count as references: what is computed
        from references is computed anew, all else is shared."""
        if heuristics == self.heuristics:
            return self
        return self.once(("heuristics", heuristics), lambda: self._copy(heuristics))

    def _copy(self, heuristics: Heuristic) -> Session:
        _ = self.directory  # computed before the copy, so that both have it
        made = copy(self)
        made.heuristics, made._origin, made.uses = heuristics, self, Uses()
        made._results = {key: self._results[key] for key in _SHARED if key in self._results}
        made.graphs = ReferenceGraphs(made, heuristics)
        return made

    @contextmanager
    def timed(self, work: str) -> Iterator[None]:
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
        self.graphs = ReferenceGraphs(self, self.heuristics)
        if self._origin is not None:
            self._origin._drop_computed()

    @cached_property
    def in_flight(self) -> dict[int, ThreadInside]:
        """Blocks in use that threads inside an allocator work on, each with a thread. The thread
        may hold the address in the allocator's own form."""
        # Before `self.inside`, which `directory` sets.
        blocks = self.directory.blocks
        return find_blocks_in_flight(self.inside, blocks)

    @cached_property
    def kernel_references(self) -> list[tuple[int, KernelReference]]:
        """References that only the kernel keeps, each with the word that counts as a root."""
        state = self.target.kernel_state()
        return kernel_words(self.target, self.directory.blocks, state.references) if state is not None else []

    @property
    def roots(self) -> list[Range]:
        """Root memory, sorted and disjoint. Registers are further roots."""
        return self.once("roots", lambda: subtract(self.root_memory, self.unread.ranges()))

    @cached_property
    def root_memory(self) -> list[Range]:
        """`roots`, and what threads have in memory but will not read again."""
        nothing = [part for one in self.reserved for part in one.ranges]
        claimed = sorted([*self.directory.claimed(), *nothing, *self._own_memory()])
        return root_ranges(self.target, self.engine, claimed, self.stack_at)

    def dead_stack(self) -> list[Range]:
        """Memory of stacks that no live frame uses."""
        return dead_ranges(self.target, self.engine, root_regions(self.target.regions()), self.stack_at)

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

    @property
    def unread(self) -> Unread:
        """What threads have in registers and below their stack pointers but will not read again."""
        return self.once("unread", self._find_unread)

    def _find_unread(self) -> Unread:
        with self.timed("unread"):
            suspects = self.doubtful
            self.report_progress("reading what threads do next", 0.0)
            return unread(self.target, self.directory.blocks, suspects)

    @cached_property
    def doubtful(self) -> Doubtful:
        """Words of which only code shows whether threads will read them again."""
        with self.timed("doubtful"):
            return doubtful(self.target, self.engine, self.directory.blocks)

    def register_words(self) -> list[int]:
        """Register words that are roots, and other root words that are not in memory."""
        return [*register_words(self.target, self.unread, self.library_words), *(word for word, _ in self.kernel_references)]

    @cached_property
    def library_words(self) -> list[int]:
        return library_words(self.target)

    @cached_property
    def runtimes(self) -> Sequence[Runtime]:
        """Every managed runtime in the process."""
        from findleaks.runtimes.directory import find  # few commands need it

        return find(self.target, self.engine, self.directory)

    @cached_property
    def object_types(self) -> Optional[ObjectTypes]:
        """The types of managed objects that are allocators' blocks; None without such a runtime."""
        return next((made for made in (runtime.object_types() for runtime in self.runtimes) if made is not None), None)

    @property
    def reference_counts(self) -> Optional[ReferenceCounts]:
        """The reference counts of leaked objects, beside the references in `graph()`; None if no
        runtime counts, or nothing leaked."""
        graph = self.graph()
        if not graph.has_kind(Kind.DEFINITE, 1):
            return None

        def compare() -> Optional[ReferenceCounts]:
            made = (one.reference_counts(graph, self.pieces(self.heap_ranges(), "counting references")) for one in self.runtimes)
            return next((counts for counts in made if counts is not None), None)

        return self.once(("reference counts", graph), compare)

    @property
    def sites(self) -> Sites:
        """The allocation stacks that were recorded in the process, those of runtimes first."""
        return self.once("sites", self._read_sites)

    def _read_sites(self) -> Sites:
        from findleaks.allocators.sites import Sites  # few commands need it

        with self.timed("sites"):
            blocks = self.directory.blocks
            found = [one for runtime in self.runtimes for one in runtime.recordings()]
            return Sites([*found, *(one for allocator in self.directory.allocators for one in allocator.recordings(blocks))])

    @property
    def recorded(self) -> bool:
        """Whether there may be `sites`; known without reading them."""
        return any(one.recorded for one in self.runtimes) or any(one.has_recordings for one in self.directory.allocators)

    @cached_property
    def dead(self) -> Sequence[Range]:
        """Parts of managed heaps without live objects, sorted and disjoint."""
        if self.runtimes:
            self.report_progress("reading managed heaps", 0.0)
        return sorted(part for runtime in self.runtimes for part in runtime.dead())

    @cached_property
    def no_references(self) -> Sequence[Range]:
        """Memory whose words are references in no command, sorted and disjoint: `dead`, and what
        runtimes keep to find their own objects. Words inside blocks: see Runtime.links."""
        return merge_ranges([*self.dead, *(part for runtime in self.runtimes for part in runtime.bookkeeping())])

    @cached_property
    def stale_slots(self) -> Sequence[Range]:
        """Slots of containers beyond their length, sorted and disjoint: no references in any graph;
        see stale_slots/."""
        from findleaks.stale_slots import find_stale_slots

        with self.timed("stale slots"):
            blocks, roots, heaps = self.directory.blocks, self.root_memory, merge_ranges(self.heap_ranges())
            return find_stale_slots(self.target, self.engine, blocks, roots, heaps, lambda: self.report_progress("finding containers", 0.0))

    @cached_property
    def types(self) -> Types:
        return Types(self.target)

    @property
    def debug_files(self) -> DebugFiles:
        """Files with debug information, opened on first use."""
        from findleaks.debuginfo.files import DebugFiles  # few commands need it

        return self.once("debug_files", lambda: DebugFiles(self.target, self.report_progress))

    @property
    def sources(self) -> Sources:
        """The source of code: files, lines and inlined functions, from debug information."""
        from findleaks.debuginfo.sources import Sources

        return self.once("sources", lambda: Sources(self.target, lambda: self.debug_files, self.report_progress))

    @property
    def members(self) -> Members:
        """Types of variables and names of their members, from debug information."""
        from findleaks.debuginfo.members import Members

        return self.once("members", lambda: Members(self.target, self.debug_files))

    def graph(self) -> Graph:
        """The reference graph of all blocks, marked and classified."""
        return self.once("graph", self.graphs.graph)

    @property
    def signal_stacks(self) -> Sequence[int]:
        """Starts of blocks that look like alternate signal stacks: graph/signal_stacks.py."""
        _ = self.graph()
        return self.graphs.signal_stacks

    @property
    def references(self) -> Graph:
        """`graph()`, but perhaps not marked and classified yet: for references and ownership."""
        self.once("references", self.graphs.scan)
        return self.graphs.references  # marking may have replaced it since

    @property
    def ownership(self) -> Graph:
        """Graph of who retains what, perhaps not marked: see ReferenceGraphs.ownership. `graph()`,
        which is complete with disguised pointers, where it is no graph of its own."""
        return self.once("ownership", lambda: self.graphs.ownership) or self.graph()

    @property
    def learned(self) -> Learned:
        """The conventions for interior pointers that were learned from the program."""
        _ = self.graph()
        return self.graphs.learned

    @property
    def structures(self) -> Structures:
        """The structures, hash tables for example, that interior pointers refer to."""
        _ = self.graph()
        return self.graphs.structures

    @property
    def disguised(self) -> Disguised:
        """The disguised pointers that count as references in `graph()`."""
        _ = self.graph()
        return self.graphs.disguised

    def path(self, index: int) -> list[int]:
        """A shortest chain of block indices from one that a root refers to, [] if none reaches it;
        see Graph.path."""
        own = self.once("ownership", lambda: self.graphs.ownership)
        chain = self.graphs.path(own, index) if own is not None else []
        return chain or self.graphs.path(self.graph(), index)

    def pieces(self, ranges: Sequence[Range], phase: str, dead: bool = False, whole: bool = False) -> Iterator[Piece]:
        """Memory of these ranges, pointers without tags. `no_references` are zeros unless `dead`.
        Long runs of zeros are left out unless `whole`. Ctrl-C is checked for."""
        total = sum(end - start for start, end in ranges) or 1
        done = 0
        for start, end in ranges:
            for piece in self.target.pieces(start, end) if whole else nonzero_pieces(self.target, start, end, BEGINNING):
                self.report_progress(phase, (done + piece.address - start) / total)
                piece = remove_tags(piece) if self.target.tagged else piece
                yield piece if dead else blank_out(piece, self.no_references)
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
        self.is_closed = True
        self.target.close()
        self._drop_computed()

    def report_progress(self, phase: str, part: float) -> None:
        """Report progress (part 0: unknown). Raises Interrupted if the user asked to stop."""
        if self.target.interrupted():
            raise Interrupted
        if self.progress is not None:
            self.progress(phase, part)
