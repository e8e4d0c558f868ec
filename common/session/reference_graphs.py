"""The reference graphs of a session, which are scanned, marked and classified when they are
needed."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Optional

from findleaks.block_types.shapes import has_counted_elements
from findleaks.engine.contract import Graph
from findleaks.engine.disguises import Disguise, Form
from findleaks.engine.terms import Heuristic, Kind
from findleaks.errors import UnreadableMemory
from findleaks.graph.conventions import NO_CONVENTIONS, HeuristicMatcher, Learned, heuristic_matcher, learn_conventions
from findleaks.graph.disguises import NOT_DISGUISED, Disguised, lost_totals, search_disguises, with_effect
from findleaks.graph.roots import register_words
from findleaks.graph.signal_stacks import SignalStacks, signal_stacks
from findleaks.graph.xor_lists import search_xor_lists
from findleaks.libc.loader import linker_ranges
from findleaks.libc.pointer_guard import ROTATION, read_pointer_guard
from findleaks.session.interior_structures import Structures, add_links, recognise_structures
from findleaks.target.base import Range
from findleaks.target.ranges import cut_out, intersection, range_at, subtract

if TYPE_CHECKING:
    from findleaks.runtimes.base import Exclusions, ObjectTypes
    from findleaks.session import Session
    from findleaks.session.dependent_blocks import DependentBlock
    from findleaks.session.leaked_mappings import MappingSearch


def _distinguish_ranks(known: ObjectTypes) -> array[int]:
    """Return `ranks` without equal numbers: of types with the same rank, the first by name has the
    highest. Thus all cycles of the same types are named after one of them. In trees, types of the
    same rank stay equal, because the block with the lowest address is mostly the top."""
    if known.are_trees:
        return known.ranks
    order = sorted(range(len(known.ranks)), key=lambda number: known.names[number], reverse=True)
    order.sort(key=lambda number: known.ranks[number])
    ranks = array("I", [1]) * len(order)
    for rank, number in enumerate(order, 1):
        ranks[number] = rank
    return ranks


def _last_bytes(ranges: Sequence[Range]) -> list[int]:
    """Return an address inside each range. Such a word makes the range possibly lost instead of
    definitely lost. Each address has a different offset, so that the words do not look like a
    convention of the program."""
    return [end - 1 - at % (end - start) for at, (start, end) in enumerate(ranges)]


class ReferenceGraphs:
    """The graphs of a session, in which the interior pointers of `heuristics` count as references.

    Every command uses the same references. Data with which a runtime finds its own objects is in
    none of these graphs. Examples are the lists of CPython's collector, and the table of
    tracemalloc."""

    def __init__(self, session: Session, heuristics: Heuristic) -> None:
        self._session, self._heuristics = session, heuristics
        self._graph: Optional[Graph] = None
        self._is_classified = False  # whether the graph is also marked and classified
        self._complete: list[Graph] = []  # the graphs to which _add_doubtful has added words
        self.learned: Learned = NO_CONVENTIONS
        self.structures = Structures()
        self.disguised: Disguised = NOT_DISGUISED
        self.signal_stacks = SignalStacks()
        # Set during the search for leaked mappings: mappings that are not roots yet.
        self.mappings: Optional[MappingSearch] = None

    def graph(self) -> Graph:
        """Return the reference graph of all blocks, marked and classified. After this call, the
        attributes contain what marking found."""
        if not self._is_classified:
            self._graph = self._classify(self.references)
            self._is_classified = True
        return self.references

    def scan(self) -> None:
        """Create the graph if it does not exist."""
        _ = self.references

    @property
    def references(self) -> Graph:
        """The graph, possibly not yet marked and classified."""
        if self._graph is None:
            self._graph = self._scan(self._heuristics)
        return self._graph

    @cached_property
    def ownership(self) -> Optional[Graph]:
        """A graph, not marked, without the further words that a runtime excludes from ownership
        (Runtime.words_for_ownership). None if `references` already lacks them."""
        runtimes = self._session.runtimes
        made = (runtime.words_for_ownership() for runtime in runtimes)
        excluded = next((one for one in made if one is not None), None)
        return self._scan(Heuristic.NONE, excluded) if excluded is not self._excluded else None

    def path(self, graph: Graph, index: int) -> list[int]:
        """Return the indices of the blocks on a shortest chain that starts at a block referenced by
        a root. Returns [] if no root reaches the block. See Graph.path."""
        return self._add_doubtful(graph).path(index)

    def is_excluded(self, index: int, address: int, value: int) -> bool:
        """Whether the word `value` at `address` in block number `index` is not a reference, because
        a runtime stores it only for its own use."""
        if self._excluded is None:
            return False
        patterns, exclusions = self._excluded
        blocks, of = self._session.directory.blocks, exclusions[patterns[index]]
        bit = of.bit((address - blocks.address(index)) // self._session.target.arch.word)
        if of.words & bit or not of.links & bit:
            return bool(of.words & bit)
        target = blocks.find(value)
        return target >= 0 and exclusions[patterns[target]].header == value - blocks.address(target) & -4

    # -- scanning

    def _scan(self, heuristics: Heuristic, excluded: Optional[Exclusions] = None) -> Graph:
        """Return a graph, not marked, with all references except the `excluded` ones (default:
        `_excluded`). Words that threads may not read again are left out if `_mark` can add them
        later."""
        session = self._session
        unread, stale = session.doubtful.all_dead or session.unread, session.stale_slots
        with session.measure("scan"):
            vtables = session.types.vtables() if heuristics & Heuristic.MULTIPLE_INHERITANCE else ()
            customary, types = self._customary
            graph = session.engine.graph(session.directory.blocks, heuristics | customary, vtables, types)
            excluded = excluded or self._excluded
            if excluded is not None:
                graph.exclude_words(*excluded)
            if session.object_types is not None:
                graph.set_labels(session.object_types.types, _distinguish_ranks(session.object_types))
            for piece in session.pieces(session.heap_ranges(), "reading the heaps"):
                for part in cut_out(piece, stale):
                    graph.scan_blocks(part)
            held_back = self.mappings.held_back() if self.mappings is not None else []
            for piece in session.pieces(subtract(session.root_memory, [*unread.ranges(), *held_back]), "reading the roots"):
                graph.scan_roots(piece)
            graph.root_words(_last_bytes(session.directory.mappings.doubtful))
            graph.root_words([*register_words(session.target, unread, session.library_words), *self._thread_blocks(), *session.in_flight])
            graph.root_words([word for word, _ in session.kernel_references])
            graph.root_words([block for runtime in session.runtimes for block in runtime.permanent_blocks()])
            graph.settle()
        return graph

    @cached_property
    def _customary(self) -> tuple[Heuristic, list[int]]:
        """The heuristics for interior pointers that allocators and runtimes always need (for
        references to Python's objects), and type addresses; see Allocator.heuristics."""
        session = self._session
        asked = [allocator.heuristics(session.heap_ranges()) for allocator in session.directory.allocators]
        asked += [runtime.heuristics() for runtime in session.runtimes]
        heuristics = Heuristic.NONE
        for one, _ in asked:
            heuristics |= one
        return heuristics, sorted({address for _, types in asked for address in types})

    @cached_property
    def _excluded(self) -> Optional[Exclusions]:
        """Words of blocks that are not references; None if no runtime defines such words."""
        made = [one for one in (runtime.excluded_words() for runtime in self._session.runtimes) if one is not None]
        if len(made) < 2:
            return made[0] if made else None
        from findleaks.runtimes.merged_exclusions import merge_exclusions

        return merge_exclusions(made)

    def _thread_blocks(self) -> list[int]:
        """Return the starts of blocks that threads use: stacks of coroutines, alternate signal
        stacks, control blocks.

        These blocks are in use, but possibly only an interior pointer in a stack pointer or thread
        pointer refers to them. Example: musl's ld.so allocates the control block of the main thread
        with malloc if the thread-local storage is large."""
        blocks = self._session.directory.blocks
        threads = self._session.target.threads()
        found = (blocks.find(address) for thread in threads for address in (thread.sp, thread.thread_pointer))
        return [blocks.address(index) for index in found if index >= 0]

    # -- marking

    def _classify(self, graph: Graph) -> Graph:
        """Return the graph, marked and classified. It is a new graph if marking found that other
        heuristics are needed."""
        with self._session.measure("mark"):
            graph = self._mark_by_conventions(graph)
            self._connect_dependents(graph)
            self._mark_possible_arrays(graph)
            self._sort_lost(graph)
        self._add_disguised(graph)
        return graph

    def _connect_dependents(self, graph: Graph) -> None:
        """Add references from owners to their dependent blocks that are not reachable yet, and mark
        again. These owners are not reachable, or only because of a convention for interior
        pointers, or at the end of a long chain of dependent blocks."""
        kinds = graph.kinds()
        added = array("Q", [owner << 32 | block for owner, block, _ in self.dependents if kinds[block] != Kind.REACHABLE])
        if not added:
            return
        graph.connect(added)
        while not graph.mark(self._session.budget):
            self._session.report_progress("following pointers", 0.0)
        if self._heuristics & Heuristic.AUTO:
            recognise_structures(self._session, graph)
            self._learn_conventions(graph)
            add_links(self._session, graph, self.structures)

    def _mark_possible_arrays(self, graph: Graph) -> None:
        """Mark blocks as possibly lost that may be later elements of arrays of blocks, and that are
        not reachable; see Allocator.possible_arrays."""
        blocks = self._session.directory.blocks
        indices = [index for one in self._session.directory.allocators for index in one.possible_arrays(blocks)]
        kinds = graph.kinds() if indices else ()
        words = [blocks.address(index) + 1 for index in indices if kinds[index] != Kind.REACHABLE]
        if words:
            # These words are added after conventions are learned, because they are not evidence.
            graph.root_words(words)
            graph.connect(array("Q"))
            while not graph.mark(self._session.budget):
                self._session.report_progress("following pointers", 0.0)

    @cached_property
    def dependents(self) -> Sequence[DependentBlock]:
        """The dependent blocks of all runtimes."""
        if not self._session.runtimes:
            return ()
        from findleaks.session.dependent_blocks import find_dependent_blocks

        return find_dependent_blocks(self._session)

    def _mark_dependents(self, graph: Graph) -> None:
        if self.dependents:
            from findleaks.session.dependent_blocks import mark_dependent_blocks

            mark_dependent_blocks(self._session, graph, self.dependents)

    def _sort_lost(self, graph: Graph) -> None:
        while not graph.classify(self._session.budget):
            self._session.report_progress("classifying leaked blocks", 0.0)

    def _add_disguised(self, graph: Graph) -> None:
        """If the program uses disguised pointers, add them as references, then mark and classify
        again."""
        session = self._session
        if not self._heuristics & Heuristic.AUTO or not graph.has_kind(Kind.DEFINITE, 1):
            return
        with session.measure("disguised"):
            # Words that threads perhaps do not read again are not searched, because examining them
            # takes too long. Mappings that look leaked are not searched either, because they may
            # refer to their own handles. No program stores pointers in ld.so, whose start_time is a
            # number that grows by 1 in about 2 s.
            unread = session.doubtful.all_dead or session.unread
            apart = self.mappings.held_back() if self.mappings is not None else []
            roots = subtract(session.root_memory, [*unread.ranges(), *apart, *linker_ranges(session.target)])
            key = read_pointer_guard(session.target)
            mangled = [Form(Disguise.MANGLED, key, ROTATION)] if key else []
            found, references = search_disguises(graph, session.engine, session.directory.blocks, session, roots, mangled)
            if not references:
                lists, references = search_xor_lists(graph, session.directory.blocks, session.target)
                found = lists if references else found
            if references:
                before = lost_totals(graph)
                graph.connect(references)
                while not graph.mark(session.budget):
                    session.report_progress("following pointers", 0.0)
                self._sort_lost(graph)
                found = with_effect(found, before, graph, session.directory.blocks)
            self.disguised = found

    def _mark_by_conventions(self, graph: Graph) -> Graph:
        """Return the marked graph. If a heuristic explains most interior pointers, it is a new
        graph with this heuristic."""
        self._mark(graph)
        if not self._heuristics & Heuristic.AUTO:
            return graph
        self.structures = recognise_structures(self._session, graph)
        learned = self._learn_conventions(graph)
        if learned.heuristics:
            before = graph.totals(Kind.POSSIBLE)
            self._complete.clear()
            graph = self._graph = self._scan(self._heuristics | learned.heuristics)
            self._mark(graph)
            self.structures = recognise_structures(self._session, graph)
            again = self._learn_conventions(graph)
            after = graph.totals(Kind.POSSIBLE)
            held = before.minus(after)
            learned = again._replace(heuristics=learned.heuristics, held=held)
        self.learned = learned
        self.structures = add_links(self._session, graph, self.structures)
        return graph

    def _mark(self, graph: Graph) -> None:
        session = self._session
        while not graph.mark_starts(session.budget):
            session.report_progress("following pointers", 0.0)
        self._admit_mappings(graph)
        self._mark_dependents(graph)
        if not graph.holds(session.doubtful.words):
            self._add_doubtful(graph)
        # The next call follows the words that `_add_doubtful` adds.
        while not graph.mark_starts(session.budget):
            session.report_progress("following pointers", 0.0)
        self._admit_mappings(graph)
        self._mark_dependents(graph)
        self.signal_stacks = signal_stacks(session.target, session.engine, session.directory.blocks, graph, session.dead_stack)
        graph.root_words(self.signal_stacks.found)
        while not graph.mark(session.budget):
            session.report_progress("following pointers", 0.0)

    def _admit_mappings(self, graph: Graph) -> None:
        """If a marked block refers to a mapping, mark what the mapping refers to."""
        session, blocks = self._session, self._session.directory.blocks
        while self.mappings is not None and (live := self.mappings.admit(lambda index: graph.holds([blocks.address(index)]))):
            for piece in session.pieces(live, "reading mappings"):
                graph.scan_roots(piece)
            while not graph.mark_starts(session.budget):
                session.report_progress("following pointers", 0.0)

    def _add_doubtful(self, graph: Graph) -> Graph:
        """Add the doubtful words that threads will read again, unless `graph` has them. Return
        `graph`, which then has all roots."""
        session = self._session
        if session.doubtful.all_dead is not None and not any(one is graph for one in self._complete):
            self._complete.append(graph)
            for piece in session.pieces(intersection(session.roots, session.doubtful.all_dead.ranges()), "reading the roots"):
                graph.scan_roots(piece)
            graph.root_words(session.register_words())
        return graph

    def _learn_conventions(self, graph: Graph) -> Learned:
        session = self._session
        word = session.target.arch.word
        known = [rule for runtime in session.runtimes for rule in runtime.interior_offsets()]
        matchers = self._heuristic_matcher, self._has_elements
        blocks = session.directory.blocks
        return learn_conventions(graph, blocks, session.engine, word, *matchers, session.budget, session.report_progress, known)

    def _read_number(self, address: int, length: int) -> Optional[int]:
        """Return the number in `length` bytes of memory; None if they cannot be read."""
        target = self._session.target
        try:
            if length == target.arch.word:
                return target.word(address)
            return int.from_bytes(target.read(address, length), target.arch.byteorder)
        except UnreadableMemory:
            return None

    @cached_property
    def _heuristic_matcher(self) -> HeuristicMatcher:
        """A function that tests which of memcheck's heuristics match a block, by the content of the
        block."""
        vtables = self._session.types.vtables()
        word = self._session.target.arch.word
        return heuristic_matcher(word, self._read_number, lambda value: range_at(vtables, value) is not None)

    def _has_elements(self, start: int, size: int) -> bool:
        """Whether a block has the elements of `new T[n]`, in a process that may use C++."""
        return has_counted_elements(self._session.target, start, size) and self._session.types.may_have_strings
