"""The objects of Go's heap as a graph, which commands use to answer questions about single
objects."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.bulk import find_pointers
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine, Graph
from findleaks.engine.dominators import Dominators
from findleaks.engine.terms import Totals
from findleaks.runtimes.absent_memory import find_absent_memory
from findleaks.runtimes.base import UserThread
from findleaks.runtimes.go.engine import NONE
from findleaks.runtimes.go.goroutines import Goroutines
from findleaks.runtimes.go.members import list_starts, name_member
from findleaks.runtimes.go.objects import UNTYPED, HeapObjects
from findleaks.runtimes.go.packages import find_own_frame
from findleaks.runtimes.go.types import Types
from findleaks.runtimes.go.variable_names import VariableNames
from findleaks.runtimes.heap_dump import DumpableGraph
from findleaks.runtimes.object_graph import ObjectWord
from findleaks.runtimes.root_groups import RootGroup
from findleaks.runtimes.user_threads import describe_state
from findleaks.target.base import Range, Target

_TIMERS = "the list of timers that have not fired (time.AfterFunc, NewTimer, NewTicker)"
_TIMER_LINKS = 3  # references from a root among which a processor's list of timers is looked for
# Objects at the start of a path among which a goroutine is looked for. The first ones may be
# structures of threads.
_GOROUTINE_LINKS = 6
_QUEUED = "finalizer or cleanup that has not run yet"
# Types of objects that every goroutine has: a path to one of them explains nothing.
_OF_GOROUTINES = ("runtime.g", "runtime.sudog")
_RECORD = "record of a finalizer, a cleanup or a weak pointer"


class GoGraph(DumpableGraph):
    """See ObjectGraph. A pointer counts as a reference even if it refers to the interior of another
    object."""

    noun = "Go object"

    def __init__(
        self, target: Target, engine: Engine, objects: HeapObjects, graph: Graph, types: Types, goroutines: Optional[Goroutines]
    ) -> None:
        super().__init__(target, engine, objects.blocks, graph)
        self._objects, self._types, self._goroutines = objects, types, goroutines

    def type_of(self, index: int) -> str:
        value = self._objects.type_value(index)
        return self._objects.names.title(value) if value != NONE else UNTYPED

    @cached_property
    def absent(self) -> Mapping[int, int]:
        spans = self._objects.spans
        columns = zip(spans.starts, spans.ends, spans.slots)
        found = find_absent_memory(self.target, [Range(start, end) for start, end, slots in columns if slots == 1])
        indices = self.blocks.find_all(list(found))[0]
        return {index: absent for index, absent in zip(indices, found.values()) if index < len(self.blocks) and self.is_live(index)}

    def labels(self) -> tuple[array[int], Sequence[str]]:
        names = self._objects.names
        return self._objects.types, [names.title(value) for value in range(2 * len(names.names))]

    def name_member(self, index: int, offset: int) -> str:
        value = self._objects.type_value(index)
        return name_member(self._types, self._objects.names, value, offset) if value != NONE else ""

    def list_starts(self, index: int, offset: int) -> Optional[list[int]]:
        """See list_starts of members.py."""
        value = self._objects.type_value(index)
        return list_starts(self._types, self._objects.names, value, offset) if value != NONE else None

    def extent(self, index: int) -> tuple[int, int]:
        start, end = super().extent(index)
        return start + self._objects.header_of(index), end

    def references_of(self, index: int, low: int, high: int) -> Iterator[ObjectWord]:
        start, end = self.extent(index)
        for address, value in self._search([Range(start, end)], low, high):
            yield ObjectWord(address, value, self.name_member(index, address - start))

    def _search(self, ranges: Sequence[Range], low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield the address and the value of each pointer of the objects in some ranges, if the
        value is in [low, high)."""
        for piece in self._objects.pointers.pieces(ranges):
            yield from zip(*find_pointers(self.engine, piece, low, high))

    def reference_words(self) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        last = len(self.blocks) - 1
        low, high = (self.blocks.address(0), self.blocks.address(last) + self.blocks.size(last)) if last >= 0 else (0, 0)
        for piece in self._objects.reference_pieces():
            yield find_pointers(self.engine, piece, low, high)

    def roots_to(self, low: int, high: int) -> Iterator[ObjectWord]:
        objects = self._objects
        for pairs in objects.variable_words():
            yield from (ObjectWord(address, value, self.names.name(address)) for address, value in pairs if low <= value < high)
        for address, value in objects.stacks.find(low, high):
            yield ObjectWord(address, value, self.describe_stack(address))
        for address, value in self._search(objects.finalized, low, high):
            yield ObjectWord(address, value, "object with a finalizer")
        for _, place, words in objects.records:
            yield from (ObjectWord(place + 8 * at, value, _RECORD) for at, value in enumerate(words) if low <= value < high)
        yield from (ObjectWord(address, value, _QUEUED) for address, value in objects.queued_pointers() if low <= value < high)
        for thread in objects.stacks.threads_with_registers():
            names = [*thread.names, *[""] * (len(thread.words) - len(thread.names))]
            found = {(name or "vector", value) for name, value in zip(names, thread.words) if low <= value < high}
            yield from (ObjectWord(0, value, "", name, thread.tid) for name, value in sorted(found))

    def describe_stack(self, address: int) -> str:
        """See Goroutines.describe_stack."""
        return self._goroutines.describe_stack(self._threads, address) if self._goroutines is not None else ""

    @cached_property
    def names(self) -> VariableNames:
        """The names of global variables."""
        tables = self._goroutines.tables if self._goroutines is not None else ()
        return VariableNames(self.target, tables, [pair for pairs in self._objects.variable_words() for pair in pairs])

    def root_groups(self) -> Sequence[RootGroup]:
        # Few commands need the groups, so they are imported here.
        from findleaks.runtimes.go.root_groups import list_root_groups

        structures = self._goroutines.structures if self._goroutines is not None else {}
        structure, memory = self._types.find("runtime.g"), Memory(self.target)
        offset = self._types.offset(structure, "_defer") if structure is not None else None
        active = [one.number for one in self._objects.stacks.threads() if one.state != "waiting" and not one.is_internal]
        known = ((number, structures.get(number)) for number in active)
        deferred = {number: memory.word(at + offset) or 0 for number, at in known if at and offset is not None}
        return list_root_groups(self._objects, self.names, structures, deferred)

    def example(self, type_name: str) -> Optional[int]:
        return None if type_name in _OF_GOROUTINES else super().example(type_name)

    def types_below(self, tree: Dominators, node: int) -> list[tuple[str, Totals]]:
        """Return the types of the objects that a node of a tree retains, most bytes first."""
        return self._objects.types_below(tree, node)

    def describe_root(self, index: int) -> str:
        # A shortest path to a timer begins at a processor (runtime.p), and one to a deferred call
        # begins at the list of goroutines. Any stack or variable of the runtime may refer to the
        # processor or the list. Such a root says nothing about the program.
        path = self.path(index)
        links = zip(path[:_TIMER_LINKS], path[1:])
        if any(self.type_of(one) == "runtime.p" and self.link(one, after).name.startswith(".timers") for one, after in links):
            return _TIMERS
        # The last goroutine of the path refers to the object.
        owners = path[min(_GOROUTINE_LINKS, len(path) - 1) - 1 :: -1] if len(path) > 1 else ()
        return next(filter(None, map(self._describe_goroutine, owners)), "") or super().describe_root(index)

    def _describe_goroutine(self, index: int) -> str:
        """Return a phrase for the goroutine whose g structure is this object, or ""."""
        if self.type_of(index) != "runtime.g" or self._goroutines is None:
            return ""
        address, structures = self.blocks.address(index), self._goroutines.structures
        one = next((one for one in self._threads if structures.get(one.number) == address), None)
        frame = find_own_frame(one.frames) if one is not None else None
        return f"goroutine {one.number} ({describe_state(one)}), in {frame.short_name()}" if one is not None and frame is not None else ""

    @property
    def _threads(self) -> Sequence[UserThread]:
        return self._objects.stacks.threads()

    def add_roots(self, tree: Dominators, root: int) -> None:
        objects = self._objects
        for words in (*objects.root_words(), objects.finalized_words()):
            tree.root_words(words, root)
        for words in objects.stacks.words(self._threads):
            tree.root_words(words, root)
