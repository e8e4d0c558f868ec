"""List the objects of Go's heap: their types, and which of them are garbage.

Each slot of a span is a block of the engine. Types spread from headers and interface values
(engine.py). Live objects are marked from Go's roots:

- Words of global variables that a bitmap marks as pointers.
- Words of goroutines' stacks that a stack map marks as pointers.
- Registers of threads.
- Finalizers and other special records.

In an object, only words that a map of pointers marks are references (pointer_maps.py). A marked
word is a reference even if it points to the interior of another object."""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, repeat
from typing import Optional

from findleaks.allocators.bulk import find_pointers
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine, Graph
from findleaks.engine.dominators import Dominators, root_node
from findleaks.engine.terms import Heuristic, State, Totals
from findleaks.errors import Interrupted
from findleaks.runtimes.absent_memory import find_resident_bytes
from findleaks.runtimes.base import UserThread
from findleaks.runtimes.garbage import mark_objects
from findleaks.runtimes.go.cleanup_queue import QueuedCleanup, read_cleanup_queue
from findleaks.runtimes.go.closures import name_functions
from findleaks.runtimes.go.code_objects import CodeObjects
from findleaks.runtimes.go.engine import HEADER, NO_HEADER, NONE, TypeSearch, TypeTable, count_typed, read_type
from findleaks.runtimes.go.finalizer_queue import QueuedFinalizer, read_finalizer_queue
from findleaks.runtimes.go.heap import Heap
from findleaks.runtimes.go.maps import GoMap, MapReader, find_stack_maps, heads
from findleaks.runtimes.go.moduledata import Program
from findleaks.runtimes.go.object_totals import ObjectType, Retained
from findleaks.runtimes.go.pointer_maps import PointerMaps
from findleaks.runtimes.go.processors import Processors, find_timer_lists
from findleaks.runtimes.go.sent_values import find_sent_objects
from findleaks.runtimes.go.shapes import ShapeReader
from findleaks.runtimes.go.slot_fit import SlotFit
from findleaks.runtimes.go.span_table import ObjectSpan, ObjectSpans
from findleaks.runtimes.go.spans import SpecialRecords, build_blocks, joined_ranges, page_classes, read_spans, read_specials, smaller_sizes
from findleaks.runtimes.go.special_objects import find_finalized_objects, find_special_objects
from findleaks.runtimes.go.stack_roots import StackRoots
from findleaks.runtimes.go.type_addresses import TypeAddresses
from findleaks.runtimes.go.type_table import TypeNames
from findleaks.runtimes.go.types import Types
from findleaks.runtimes.object_graph import GARBAGE, LIVE, count_labels
from findleaks.runtimes.slices import run_in_slices
from findleaks.target.base import Piece, Range, Target
from findleaks.target.ranges import blank_out, merge_ranges, nonzero_pieces

_SLICE = 1 << 20  # objects that the engine visits between two checks for Ctrl-C
_MAX_MASKED = 64 << 20  # bytes of variables that are read by their bitmap of pointers
_PART_UNTYPED = 64  # 1 / this of the objects: if fewer have no type, code is not read
_MAX_LISTED = 1 << 22  # objects that goroutines retain, of which the types are counted
UNTYPED = "unknown type"


class HeapObjects:
    """The objects of a Go heap. `spans` is empty if they cannot be read. `unmapped`: the number of
    parts of objects in which `mark` treated each word as a pointer.

    `persistent`: memory that the runtime never frees, in few ranges. `stacks`: the
    pointers on goroutines' stacks. `processors`: None if unknown."""

    def __init__(
        self,
        memory: Memory,
        engine: Engine,
        heap: Heap,
        program: Program,
        persistent: Sequence[Range],
        stacks: StackRoots,
        processors: Optional[Processors],
    ) -> None:
        self._memory, self._engine, self._heap, self._program = memory, engine, heap, program
        self.persistent, self.stacks, self.processors = persistent, stacks, processors
        self.spans = read_spans(memory, engine, heap, program.types) or ObjectSpans.of(())
        self.names, self.unmapped = TypeNames(program.types), 0
        self.problems: list[str] = []

    @cached_property
    def blocks(self) -> Blocks:
        """A block for each slot."""
        return build_blocks(self._memory, self._engine, self.spans)

    def _check(self) -> None:
        if self._memory.target.is_interrupted():
            raise Interrupted

    def pieces(self, ranges: Sequence[Range]) -> Iterator[Piece]:
        """Yield the memory of some ranges."""
        for start, end in ranges:
            self._check()
            yield from self._memory.target.pieces(start, end)

    def values(self) -> Iterator[Piece]:
        """Yield the memory of variables with pointers, and of all objects."""
        return self.pieces(merge_ranges([*self._variables(), *joined_ranges(self.spans)]))

    def _variables(self) -> list[Range]:
        return merge_ranges(part for module in self._program.modules for part in (module.data, module.bss))

    @property
    def types(self) -> array[int]:
        """The type value of each block's object; see TypeSearch."""
        return self._typed[0]

    def type_value(self, index: int) -> int:
        """Return the type value of a block's object, or NONE."""
        return read_type(self.types, index)

    @cached_property
    def pointers(self) -> PointerMaps:
        """Where the pointers in objects are."""
        return PointerMaps(self._memory, self._engine, self._heap, self._program.types, self.spans, self._typed[1])

    @cached_property
    def _typed(self) -> tuple[array[int], Sequence[int]]:
        """The value of `types`, and the addresses of all types that words refer to."""
        spans = self.spans
        pieces = list(self.values())
        addresses = TypeAddresses(self._memory, self._engine, self._program, self.persistent).find(pieces)
        known = self.names.register(addresses)
        known_objects = [(one.address, self.names.map_value(one.type)) for one in self.variable_maps if one.type]
        known_objects += [(one.contents, self.names.map_contents_value(one.type)) for one in self.stack_maps if one.type]
        shapes = ShapeReader(self._memory, self._engine, self._program, self.names, self.blocks, spans, self.stacks)
        known_objects += shapes.read()
        sent = list(find_sent_objects(self._memory, self._engine, self._program.types, self.names, shapes.waits))
        sent += find_finalized_objects(self.records, self._program.types, self.names)
        structure = self._program.types.find("runtime.g")
        if structure is not None:
            known_objects += zip(self.stacks.structures, repeat(self.names.value(structure)))
        if self.processors is not None:
            structure = self._program.types.find("runtime.p")
            known_objects += zip(self.processors.addresses, repeat(self.names.value(structure) if structure is not None else NONE))
            known_objects.append((self.processors.array, self.names.add_name("[]*runtime.p") << 1))
        code = merge_ranges(module.text for module in self._program.modules)
        known_objects += find_special_objects(self._memory, self._engine, self.records, spans, self.names, code)
        for one in self.queued:
            pointer = self._program.types.at(one.pointer_type)
            if pointer is not None:
                known_objects.append((one.object, self.names.value(pointer.elem)))
        marked = zip(spans.starts, spans.large, spans.scanned)
        large = [(start, self.names.number(type_)) for start, type_, scanned in marked if type_ and scanned]
        columns = self.names.columns()
        headers = any(spans.large) or self.has_headers
        arenas = array("Q", self._heap.arenas)
        search = TypeSearch(
            self.blocks, TypeTable(*known, *columns, arenas, page_classes(self._heap, spans), smaller_sizes(spans), headers)
        )
        for start, number in large:
            index, size = self.blocks.find(start), columns[0][number] if number != NONE else 0
            if index >= 0 and size and self.blocks.state(index) == State.IN_USE:
                search.add(index, number << 1 | (self.blocks.size(index) // size > 1))
        for index, (_, value) in zip(self.blocks.find_all([start for start, _ in known_objects])[0], known_objects):
            if value != NONE and index < len(self.blocks) and self.blocks.state(index) == State.IN_USE:
                search.add(index, value)
        for index, value in SlotFit(self.names, spans, self.has_headers).list_possible(search, sent) if sent else ():
            search.add(index, value)
        while not search.run(self._engine, pieces, _SLICE):
            self._check()
        search = self._follow_code(search, pieces)
        return name_functions(self._engine, self.stacks.tables, self.names, search, pieces), list(addresses)

    def _follow_code(self, search: TypeSearch, pieces: Sequence[Piece]) -> TypeSearch:
        """Return a search that also has the types that code proves, if many objects have none."""
        live = self.blocks.totals(State.IN_USE).blocks
        untyped = live - count_typed(search.types, len(self.names.names))
        if untyped <= live // _PART_UNTYPED:
            return search
        variables, memory, program = (pair for pairs in self.variable_words() for pair in pairs), self._memory, self._program
        code = CodeObjects(memory, self._engine, program, self.names, self.spans, self.stacks, variables, self.has_headers, untyped)
        found = code.find(search, pieces, self.problems)
        sizes, pointers, first, offsets, kinds, targets = self.names.columns()
        table = search.table._replace(sizes=sizes, pointers=pointers, first=first, offsets=offsets, kinds=kinds, targets=targets)
        search = TypeSearch(self.blocks, table, search.types)
        search.state[0] = len(pieces)  # words of interfaces were read by the first search
        for index, value in found:
            search.add(index, value)
        while code.follow_closures(search, pieces) or search.state[1] < search.state[2]:
            while not search.run(self._engine, pieces, _SLICE):
                self._check()
        return search

    @cached_property
    def has_headers(self) -> bool:
        """Whether objects of more than 512 bytes have headers. They do since 1.22, where mspan has
        the type of large objects."""
        structure = self._program.types.find("runtime.mspan")
        return structure is not None and self._program.types.field(structure, "largeType") is not None

    def is_in_use(self, address: int) -> bool:
        """Return whether an object begins at this address."""
        found = self.blocks.lookup(address)
        return found is not None and found[1] == address and found[3] == State.IN_USE

    def span_of(self, index: int) -> Optional[ObjectSpan]:
        """Return the span that contains a block."""
        return self.spans.at(self.blocks.address(index))

    def header_of(self, index: int) -> int:
        """Return the bytes of the header in a block; 0 if it has none. The header contains the
        address of the type."""
        span = self.span_of(index)
        return HEADER if span is not None and self.has_headers and span.has_pointers and span.size > NO_HEADER and not span.large else 0

    def _header_type(self, address: int) -> int:
        """Return the address of the type in the header of the object that begins at an address; 0
        if it has no header."""
        span, index = self.spans.at(address), self.blocks.find(address)
        if span is None or index < 0:
            return 0
        return span.large or (self._memory.word(address) or 0 if self.header_of(index) else 0)

    def mark(self, cut: Sequence[Range] = ()) -> Graph:
        """Return a graph in which all live objects are marked, and garbage is classified. `cut`:
        sorted, disjoint ranges of words that do not count as references."""
        graph = self._engine.graph(self.blocks, Heuristic.EVERY)
        graph.set_labels(self.types, array("I", [1]) * (2 * len(self.names.names)))
        for piece in self.reference_pieces(cut):
            graph.scan_blocks(piece)
        self.unmapped = self.unmapped or self.pointers.unknown
        for words in (*self.root_words(), self.finalized_words()):
            graph.root_words(words)
        for words in self.stacks.words(self.stacks.threads()):
            graph.root_words(words)
        return mark_objects(graph, self._memory.target)

    def reference_pieces(self, cut: Sequence[Range] = ()) -> Iterator[Piece]:
        """Yield the memory of all objects with pointers, ascending, with zeros in place of words
        that are no references. `cut`: see `mark`. The references of timers to the list that
        contains them are left out: otherwise everything that refers to a timer would reach all
        other timers. Processors are reachable without these references."""
        lists = self._timer_lists
        for piece in self.pointers.all_pieces():
            for place, value in zip(*find_pointers(self._engine, piece, min(lists), max(lists) + 1)) if lists else ():
                if value in lists:
                    at = place - piece.address
                    piece.data[at : at + 8] = bytes(8)
            yield blank_out(piece, cut)

    @cached_property
    def _timer_lists(self) -> frozenset[int]:
        found = self.processors
        return frozenset(find_timer_lists(self._program.types, found.addresses) if found is not None else ())

    def retained_by(self, graph: Graph, groups: Sequence[Sequence[UserThread]], absent: Mapping[int, int]) -> list[Retained]:
        """Return what each of these groups of goroutines retains: the objects that are reachable
        only from their stacks. `absent`: see ObjectGraph."""
        tree = graph.dominators(len(groups) + 1)
        tree.expect_leaf_trees()
        every = {one.number for group in groups for one in group}
        for root, group in enumerate(groups):
            self._add_stacks(tree, group, root)
        for words in self.root_words():
            tree.root_words(words, len(groups))
        self._add_stacks(tree, [one for one in self.stacks.threads() if one.number not in every], len(groups))
        run_in_slices(tree.compute, self._memory.target)
        nodes = [(root_node(root), total) for root, total in enumerate(tree.by_root()[:-1])]
        return [
            Retained(total, self.types_below(tree, node), find_resident_bytes(tree, node, total.bytes, absent)) for node, total in nodes
        ]

    def _add_stacks(self, tree: Dominators, threads: Sequence[UserThread], root: int) -> None:
        for words in self.stacks.words(threads):
            tree.root_words(words, root)

    def types_below(self, tree: Dominators, node: int) -> list[tuple[str, Totals]]:
        """Return the types of the objects that a node of a tree retains, most bytes first."""
        counts = count_labels(self._engine, self.blocks, self.types, tree, node, _MAX_LISTED)
        named = [(self.names.title(value) if value >> 1 < len(self.names.names) else UNTYPED, totals) for value, totals in counts.items()]
        return sorted(named, key=lambda pair: -pair[1].bytes)

    def _map_reader(self, reads_small: bool) -> MapReader:
        return MapReader(self._memory, self._program, self.blocks, self._header_type, reads_small)

    @cached_property
    def variable_maps(self) -> list[GoMap]:
        """Large maps, and smaller ones of known types, to which global variables refer."""
        reader = self._map_reader(reads_small=True)
        found = (reader.read(word, address) for words in self.variable_words() for address, word in words)
        return [one for one in found if one is not None]

    @cached_property
    def stack_maps(self) -> list[GoMap]:
        """Large maps, and smaller ones of known types, whose heads are on stacks: local variables
        that do not escape."""
        return find_stack_maps(self._map_reader(reads_small=True), self._memory, self._engine, self.blocks, self.stacks, self.spans)

    def large_maps(self) -> list[GoMap]:
        """Return large maps: those of variables and stacks, and those that are known by their
        types."""
        reader, found = self._map_reader(reads_small=False), {one.address: one for one in (*self.variable_maps, *self.stack_maps)}
        for address in heads(self.blocks, self.types, self.names.map_values()):
            one = reader.read(address) if address not in found else None
            if one is not None:
                found[address] = one
        return list(found.values())

    @property
    def target(self) -> Target:
        """The process."""
        return self._memory.target

    def title_at(self, index: int) -> str:
        """Return the name of the type of a block's object; "" if it is unknown."""
        value = self.type_value(index)
        return self.names.title(value) if value != NONE else ""

    def title_of(self, one: GoMap) -> str:
        """Return the name of a map's type; "" if it is unknown."""
        index = self.blocks.find(one.address)
        return self.title_at(index) if index >= 0 else self.names.title(self.names.map_value(one.type)) if one.type else ""

    def variable_words(self) -> Iterator[list[tuple[int, int]]]:
        """Yield addresses and values of the words of global variables that may be pointers."""
        memory = self._memory
        for module in self._program.modules:
            for (start, end), mask in ((module.data, module.data_mask), (module.bss, module.bss_mask)):
                if end - start > _MAX_MASKED:
                    continue
                bits = memory.read(mask, (end - start) // 64 + 1) if mask else b""
                for piece in nonzero_pieces(memory.target, start, end):
                    words = memory.arch.words(piece.data)
                    places = range(piece.address, piece.address + 8 * len(words), 8)
                    first = (piece.address - start) // 8
                    marked = enumerate(zip(places, words), first)
                    yield [pair for at, pair in marked if pair[1] and (not bits or bits[at >> 3] >> (at & 7) & 1)]

    def root_words(self) -> Iterator[Sequence[int]]:
        """Yield the words of global variables that may be pointers, of registers, and of special
        records."""
        for pairs in self.variable_words():
            yield [word for _, word in pairs]
        yield from self.other_root_words()

    def finalized_words(self) -> array[int]:
        """Return the words of objects with finalizers. There may be many such objects."""
        pieces = self.pointers.pieces(self.finalized)
        return array("Q", chain.from_iterable(self._memory.arch.words(piece.data) for piece in pieces))

    def other_root_words(self) -> Iterator[Sequence[int]]:
        """Yield the same words, without those of global variables."""
        for thread in self.stacks.threads_with_registers():
            yield thread.words
        yield self.records.words
        yield [value for _, value in self.queued_pointers()]

    @cached_property
    def queued(self) -> list[QueuedFinalizer]:
        """Finalizers that have not run yet. Nothing else refers to their objects."""
        return read_finalizer_queue(*self._about_queues)

    @cached_property
    def queued_cleanups(self) -> list[QueuedCleanup]:
        """Cleanups that have not run yet."""
        return read_cleanup_queue(*self._about_queues)

    @property
    def _about_queues(self) -> tuple[Memory, Engine, Types, Sequence[Range], Sequence[Range], Sequence[Range]]:
        modules = self._program.modules
        parts = [part for one in modules for part in (one.noptrdata, one.data, one.bss, one.noptrbss)]
        code = merge_ranges(one.text for one in modules)
        return self._memory, self._engine, self._program.types, parts, self.persistent, code

    def queued_pointers(self) -> Iterator[tuple[int, int]]:
        """Yield the address and the value of each pointer of finalizers and cleanups that have not
        run yet."""
        for one in self.queued:
            yield from one.pointers()
        for cleanup in self.queued_cleanups:
            yield from cleanup.pointers()

    @cached_property
    def records(self) -> SpecialRecords:
        """The special records of objects."""
        return read_specials(self._memory, self._engine, self._program.types, self.spans)

    def live_samples(self, graph: Graph, buckets: Container[int]) -> Iterator[int]:
        """Yield the bucket of each live object that the memory profile sampled."""
        for address, _, words in self.records:
            index = self.blocks.find(address) if words and words[0] in buckets else -1
            if index >= 0 and graph.kind(index) in LIVE:
                yield words[0]

    @property
    def finalized(self) -> list[Range]:
        """The memory of `finalized_objects`. What they refer to is live, even if the objects
        themselves are not."""
        return merge_ranges(self.finalized_objects)

    @cached_property
    def finalized_objects(self) -> list[Range]:
        """Objects with finalizers, in no order."""
        types, made = self._program.types, []
        for address, _, words in self.records:
            if len(words) > 3 and types.at(words[3]) is not None:  # a finalizer
                span = self.spans.at(address)
                made.append(Range(address, address + (span.size if span is not None else 0)))
        return made

    def by_type(self, graph: Graph) -> list[ObjectType]:
        """Return the objects by type."""
        live, garbage = map(graph.label_totals, (LIVE, GARBAGE))
        made: dict[str, list[Totals]] = {}
        for value, (used, unused) in enumerate(zip(live, garbage)):
            if used.blocks or unused.blocks:
                made.setdefault(self.names.title(value), []).extend((used, unused))
        found = [ObjectType(name, Totals.sum_of(parts[::2]), Totals.sum_of(parts[1::2])) for name, parts in made.items()]
        whole = [Totals.sum_of(map(graph.totals, kinds)) for kinds in (LIVE, GARBAGE)]
        rest = [one.minus(Totals.sum_of(of)) for one, of in zip(whole, ([f.live for f in found], [f.garbage for f in found]))]
        if rest[0].blocks or rest[1].blocks:
            found.append(ObjectType(UNTYPED, *rest))
        return found
