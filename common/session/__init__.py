"""Session: a target, and all data computed from it. Data is computed when it is needed, and is
dropped when the process runs again."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property, partial
from typing import TYPE_CHECKING, Optional, Protocol, TypeVar, cast

from findleaks.allocators.directory import Directory
from findleaks.allocators.in_flight import ThreadInside, find_blocks_in_flight
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
from findleaks.libc.loader import find_unused_words
from findleaks.libc.stdio_buffers import find_buffers
from findleaks.session.block_directory import compute_directory, find_runtimes
from findleaks.session.debug_information import DebugInformation
from findleaks.session.host import Host
from findleaks.session.interior_structures import Structures
from findleaks.session.reference_graphs import ReferenceGraphs
from findleaks.session.uses import Uses
from findleaks.target.base import BEGINNING, Piece, Range, Target
from findleaks.target.ranges import blank_out, merge_ranges, nonzero_pieces, subtract, without_holes
from findleaks.target.residency.presence import Presence
from findleaks.target.tags import remove_tags

if TYPE_CHECKING:
    from findleaks.allocators.described.file import PoolFile
    from findleaks.allocators.sites import Sites
    from findleaks.engine.dominators import Dominators
    from findleaks.runtimes.base import ObjectTypes, ReferenceCounts, Runtime
    from findleaks.target.kernel_references import KernelReference
    from findleaks.types.hints import UserHints

Result = TypeVar("Result")

# Blocks visited between two checks for Ctrl-C: by a thread of the C engine (50 ms), and by Python
SLICE, PURE_SLICE = 1 << 20, 1 << 15
CHECKED, SMALL = 1 << 20, 1 << 14  # bytes read between two checks for Ctrl-C; added for each piece
MAX_READS = 5  # most reads of a live process while allocator data is inconsistent
PAUSE = 0.003  # seconds for which the process runs between two reads

_SHARED = ("unread", "roots", "sites", "debug_files", "sources", "members", "type_index")
"""Names of data that does not depend on which interior pointers count as references."""


class Progress(Protocol):
    """A progress callback. `phase`: what is being done ("reading the heaps"). `part`: the fraction
    done, from 0 to 1 (0: unknown)."""

    def __call__(self, phase: str, part: float) -> None: ...

    def clear(self) -> None:
        """Remove the progress line, because the work is done and output follows."""


class Session(DebugInformation):
    """The data of one target, which all commands use. Each part is computed when it is first used,
    and cached.
    Raises Interrupted if the target reports that the user wants to stop."""

    def __init__(self, target: Target, engine: Optional[Engine] = None, progress: Optional[Progress] = None) -> None:
        self.target = target
        self.engine = engine or engines.load(target.arch)
        self.progress = progress
        self.seconds: dict[str, float] = {}
        self._timed_seconds = 0.0  # seconds of all timed work
        self.inside: Sequence[ThreadInside] = []  # threads inside an allocator; set by `directory`
        self.reads = 1
        self.host: Host = Host()
        self.presence: Optional[Presence] = None  # Set when a command needs it: audit/residency.py.
        self.uses = Uses()
        self.heuristics = Heuristic.AUTO  # which interior pointers count as references
        self._origin: Optional[Session] = None  # See with_heuristics.
        self.is_closed = False
        self.debug_types: Optional[bool] = None  # See use_debug_types.
        self.type_hints: Optional[UserHints] = None
        self.pool_file: Optional[PoolFile] = None  # See use_pool_file.
        self._results: dict[Hashable, object] = {}

    @cached_property
    def directory(self) -> Directory:
        """All allocators and all blocks. Leaked mappings are blocks, too."""
        return compute_directory(self)

    def begin_command(self) -> None:
        """Start a command. From now on, warnings and times are those of this command."""
        self.uses.begin()
        self.seconds.clear()

    def once(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        """Return the result of `compute`, which is cached under `key` until the process is read
        again. If the key is a string, it is also the name of data that a command uses: see
        uses.py."""
        if key in self._results:
            self.uses.repeat(key)
        else:
            with self.uses.record(key):
                self._results[key] = compute()
        return cast(Result, self._results[key])

    def use_debug_types(self, wanted: Optional[bool], hints: Optional[UserHints] = None) -> None:
        """Choose whether debug information is used to find the types of blocks. None: it is used
        unless reading it takes long. `hints`: types that the user knows. If the choice changes, all
        results are dropped, because groups of blocks depend on it."""
        if (wanted, hints) != (self.debug_types, self.type_hints):
            if "known_types" in self._results:
                self.drop_computed()
            self.debug_types, self.type_hints = wanted, hints

    def with_heuristics(self, heuristics: Heuristic) -> Session:
        """Return a session of the same process in the same state, in which other interior pointers
        count as references. Only data that depends on references is computed again."""
        if heuristics == self.heuristics:
            return self
        return self.once(("heuristics", heuristics), lambda: self._copy(heuristics))

    def _copy(self, heuristics: Heuristic) -> Session:
        _ = self.directory  # computed before the copy, so that both sessions share it
        made = copy(self)
        made.heuristics, made._origin, made.uses = heuristics, self, Uses()
        made._results = {key: self._results[key] for key in _SHARED if key in self._results}
        made.graphs = ReferenceGraphs(made, heuristics)
        return made

    @contextmanager
    def measure(self, work: str) -> Iterator[None]:
        """Measure the time of `work`. Work that is timed inside it does not count."""
        began, before = time.perf_counter(), self._timed_seconds
        yield
        took = time.perf_counter() - began - (self._timed_seconds - before)
        self.seconds[work] = took
        self._timed_seconds += took

    def read_again(self) -> bool:
        """If a thread inside an allocator may have left data inconsistent, let a live process run
        for PAUSE seconds and drop all computed data. Returns False if nothing was done."""
        if not self.inside or self.reads >= MAX_READS or not self.target.run_on(PAUSE):
            return False
        self.reads += 1
        self.drop_computed()
        return True

    def drop_computed(self, keep: Sequence[str] = ()) -> None:
        """Drop everything that was computed from the target, except the properties in `keep`."""
        for name, attribute in vars(Session).items():
            if isinstance(attribute, cached_property) and name not in keep:
                self.__dict__.pop(name, None)
        self._results.clear()
        if self._origin is not None:
            self._origin.drop_computed()

    @cached_property
    def in_flight(self) -> dict[int, ThreadInside]:
        """Blocks in use on which threads inside an allocator are working, each with the thread."""
        blocks = self.directory.blocks  # must come first, because it sets `self.inside`
        return find_blocks_in_flight(self.inside, blocks)

    @cached_property
    def kernel_references(self) -> list[tuple[int, KernelReference]]:
        """References that only the kernel stores, each with the word that counts as a root."""
        state = self.target.kernel_state()
        return kernel_words(self.target, self.directory.blocks, state.references) if state is not None else []

    @property
    def roots(self) -> list[Range]:
        """Root memory, sorted and disjoint. Registers are roots, too, but are not included."""
        return self.once("roots", lambda: subtract(self.root_memory, self.unread.ranges()))

    @cached_property
    def root_memory(self) -> list[Range]:
        """`roots`, and the memory of words that threads will not read again."""
        nothing = [part for one in self.reserved for part in one.ranges]
        claimed = sorted([*self.directory.list_claimed(), *nothing, *self._own_memory()])
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
        """Return the mapping that contains `sp` if it is certainly only a stack; see
        graph/roots.py."""
        mixed = [part for runtime in self.runtimes for part in runtime.stack_memory()]
        return None if any(start <= sp < end for start, end in mixed) else stack_region(self.target.regions(), sp)

    @cached_property
    def reserved(self) -> Sequence[Reserved]:
        """Address ranges without data that allocators and runtimes have reserved for growth."""
        owners = [(one.title, one.list_reserved()) for one in self.directory.allocators]
        return reserved_by_owner(self.target, [*owners, *((one.name, one.list_reserved()) for one in self.runtimes)])

    @property
    def unread(self) -> Unread:
        """Words in registers and below stack pointers that threads will not read again."""
        return self.once("unread", self._find_unread)

    def _find_unread(self) -> Unread:
        with self.measure("unread"):
            suspects = self.doubtful
            self.report_progress("reading what threads do next", 0.0)
            return unread(self.target, self.directory.blocks, suspects)

    @cached_property
    def doubtful(self) -> Doubtful:
        """Words for which only the code shows whether threads will read them again."""
        with self.measure("doubtful"):
            return doubtful(self.target, self.engine, self.directory.blocks)

    def register_words(self) -> list[int]:
        """Return the words in registers that are roots, and other roots that are not in memory."""
        return [*register_words(self.target, self.unread, self.library_words), *(word for word, _ in self.kernel_references)]

    @cached_property
    def library_words(self) -> list[int]:
        return library_words(self.target)

    @cached_property
    def runtimes(self) -> Sequence[Runtime]:
        """Every managed runtime in the process."""
        return find_runtimes(self)

    @cached_property
    def object_types(self) -> Optional[ObjectTypes]:
        """The types of managed objects that are allocators' blocks; None if there are none."""
        return next((made for made in (runtime.object_types() for runtime in self.runtimes) if made is not None), None)

    @property
    def reference_counts(self) -> Optional[ReferenceCounts]:
        """The reference counts of leaked objects, compared with the references in `graph()`. None
        if no runtime counts references, or if nothing leaked."""
        graph = self.graph()
        if not graph.has_kind(Kind.DEFINITE, 1):
            return None

        def compare() -> Optional[ReferenceCounts]:
            made = (one.reference_counts(graph, self.pieces(self.heap_ranges(), "counting references")) for one in self.runtimes)
            return next((counts for counts in made if counts is not None), None)

        return self.once(("reference counts", graph), compare)

    @property
    def sites(self) -> Sites:
        """The recorded allocation stacks. Those that runtimes recorded come first."""
        return self.once("sites", self._read_sites)

    def _read_sites(self) -> Sites:
        from findleaks.allocators.sites import Sites  # imported here: few commands need it

        with self.measure("sites"):
            blocks = self.directory.blocks
            found = [one for runtime in self.runtimes for one in runtime.recordings()]
            return Sites([*found, *(one for allocator in self.directory.allocators for one in allocator.recordings(blocks))])

    @property
    def recorded(self) -> bool:
        """Whether `sites` may be non-empty. To find out, the sites are not read."""
        return any(one.recorded for one in self.runtimes) or any(one.has_recordings for one in self.directory.allocators)

    @cached_property
    def dead(self) -> Sequence[Range]:
        """Parts of managed heaps without live objects, sorted and disjoint."""
        if self.runtimes:
            self.report_progress("reading managed heaps", 0.0)
        return sorted(part for runtime in self.runtimes for part in runtime.dead())

    @cached_property
    def no_references(self) -> Sequence[Range]:
        """Memory that has no references, sorted and disjoint: `dead`, buffers of files, unused
        words of ld.so's blocks, `bookkeeping`. Runtime.excluded_words lists further words."""
        target, blocks = self.target, self.directory.blocks
        return merge_ranges([*self._managed_words, *find_buffers(target, blocks), *find_unused_words(target, blocks)])

    @cached_property
    def _managed_words(self) -> Sequence[Range]:
        return merge_ranges([*self.dead, *self.directory.bookkeeping(), *(part for one in self.runtimes for part in one.bookkeeping())])

    @cached_property
    def stale_slots(self) -> Sequence[Range]:
        """Slots of containers beyond the container's length, sorted and disjoint. They are not
        references in any graph; see stale_slots/."""
        from findleaks.stale_slots import find_stale_slots

        with self.measure("stale slots"):
            managed = merge_ranges(part for one in self.directory.allocators if one.managed for part in self.directory.of(one))
            blocks, poll = self.directory.blocks, partial(self.report_progress, "finding containers", 0.0)
            return find_stale_slots(self.target, self.engine, blocks, self.root_memory, self.heap_ranges(), poll, managed)

    @cached_property
    def types(self) -> Types:
        return Types(self.target)

    @cached_property
    def graphs(self) -> ReferenceGraphs:
        """The reference graphs, which are computed when they are needed."""
        # Must come first, because it drops the graphs with which it finds mappings
        _ = self.directory
        return ReferenceGraphs(self, self.heuristics)

    def graph(self) -> Graph:
        """Return the reference graph of all blocks, marked and classified."""
        return self.once("graph", self.graphs.graph)

    @property
    def signal_stacks(self) -> Sequence[int]:
        """Starts of blocks that look like alternate signal stacks: see graph/signal_stacks.py."""
        _ = self.graph()
        return self.graphs.signal_stacks.found

    @property
    def references(self) -> Graph:
        """The same graph as `graph()`, but possibly not yet marked and classified."""
        self.once("references", self.graphs.scan)
        return self.graphs.references  # marking may have replaced the graph

    @property
    def ownership(self) -> Graph:
        """The graph that shows what retains what, possibly not marked; see
        ReferenceGraphs.ownership. If ownership needs no separate graph, this is `graph()`, which
        includes disguised pointers."""
        graphs = self.graphs
        return self.once("ownership", lambda: graphs.ownership) or self.graph()

    @property
    def learned(self) -> Learned:
        """The conventions for interior pointers that were learned from this program."""
        _ = self.graph()
        return self.graphs.learned

    @property
    def structures(self) -> Structures:
        """The structures, such as hash tables, that interior pointers refer to."""
        _ = self.graph()
        return self.graphs.structures

    @property
    def disguised(self) -> Disguised:
        """The disguised pointers that count as references in `graph()`."""
        _ = self.graph()
        return self.graphs.disguised

    def path(self, index: int) -> list[int]:
        """Return the indices of the blocks on a shortest chain that starts at a block referenced by
        a root. Returns [] if no root reaches the block. See Graph.path."""
        graphs = self.graphs
        own = self.once("ownership", lambda: graphs.ownership)
        return (graphs.path(own, index) if own is not None else []) or graphs.path(self.graph(), index)

    def pieces(self, ranges: Sequence[Range], phase: str, dead: bool = False, whole: bool = False) -> Iterator[Piece]:
        """Yield the memory of these ranges. Tags of pointers are removed, and encoded references
        are decoded. The ranges in `no_references` are left out or replaced by zeros, unless `dead`
        is set. Long runs of zeros are left out. If `whole` is set, nothing is left out, and zeros
        replace these ranges, except buffers of files. Checks for Ctrl-C."""
        holes = () if dead else self._managed_words if whole else self.no_references
        total, done, left = sum(end - start for start, end in ranges) or 1, 0, 0
        for start, end in ranges:
            for piece in self.target.pieces(start, end) if whole else nonzero_pieces(self.target, start, end, BEGINNING):
                if left <= 0:
                    self.report_progress(phase, (done + piece.address - start) / total)
                    left = CHECKED
                left -= len(piece.data) + SMALL
                piece = remove_tags(piece) if self.target.tagged else self.directory.decode_references(piece)
                yield from (blank_out(piece, holes),) if whole else without_holes(piece, holes, self.target.arch.word)
            done += end - start

    @property
    def budget(self) -> int:
        """Number of blocks that the engine visits between two checks for Ctrl-C. It is higher if
        the engine uses threads."""
        return PURE_SLICE if self.engine.name == "pure" else SLICE * min(self.engine.threads, 4)

    def compute(self, tree: Dominators, phase: str) -> Dominators:
        """Compute `tree` with progress and checks for Ctrl-C, and return it."""
        while not tree.compute(self.budget):
            self.report_progress(phase, tree.progress())
        return tree

    def heap_ranges(self) -> list[Range]:
        """The memory of all heaps, sorted and disjoint."""
        return self.once(("heap ranges",), self.directory.ranges)

    def end_progress(self) -> None:
        """Remove the progress line, because the work is done and output follows."""
        if self.progress is not None:
            self.progress.clear()

    def close(self) -> None:
        """Close the target, and free the data computed from it. A caller that opens several
        sessions of one process keeps the first open until the last."""
        self.is_closed = True
        self.target.close()
        self.drop_computed()

    def report_progress(self, phase: str, part: float) -> None:
        """Report progress (part 0: unknown). Raises Interrupted if the user asked to stop."""
        if self.target.is_interrupted():
            raise Interrupted
        if self.progress is not None:
            self.progress(phase, part)
