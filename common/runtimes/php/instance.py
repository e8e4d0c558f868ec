"""A PHP interpreter in a process."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.directory import Directory
from findleaks.allocators.memory import Memory
from findleaks.allocators.zend.instance import ZendHeap
from findleaks.engine.contract import Engine, Graph
from findleaks.engine.dominators import IGNORED
from findleaks.engine.terms import EVERY_WORD, Exclusion
from findleaks.errors import Interrupted
from findleaks.runtimes.base import Count, Exclusions, Holders, ObjectTypes, Part, ReferenceCounts, Runtime, Type, Variable
from findleaks.runtimes.compared_counts import CountedValues, Style, compare_counts
from findleaks.runtimes.count_verdict import CountVerdict
from findleaks.runtimes.merged_exclusions import add_masks
from findleaks.runtimes.php.code_words import CodeWords, find_arenas, find_code_words
from findleaks.runtimes.php.engine import (
    ARRAYS,
    ELEMENTS,
    LEAF,
    MOST_USED,
    OBJECTS,
    RANKS,
    STRINGS,
    SUMS,
    Values,
    find_stale,
    find_values,
    name_rank,
)
from findleaks.runtimes.php.engine_globals import EngineGlobals, GlobalsSearch
from findleaks.runtimes.php.functions import find_results
from findleaks.runtimes.php.global_names import GlobalNames
from findleaks.runtimes.php.internal import InternalObjects
from findleaks.runtimes.php.objects import Objects, find_unused_ends, read_objects
from findleaks.runtimes.php.released import Released
from findleaks.runtimes.php.tables import Tables
from findleaks.runtimes.php.variables import Names
from findleaks.target.base import Piece, Range, Target
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import merge_ranges

FIXED = ("string", "reference", "resource", "elements of an array")
"""Names of the types before ARRAYS."""
USER_CLASS = b"\2"  # first byte of the zend_class_entry of a class of the program
CLOSURE, FUNCTION = "Closure", 56  # a class; offset of `func` in a zend_closure
MOST_STALE = 1 << 18  # runs of released values that are excluded
IMMUTABLE = 0x40  # GC_IMMUTABLE, in the type of a value: its count is not maintained


class Php(Runtime):
    """PHP in a process. See base.Runtime. `heaps` are the heaps of PHP's memory manager."""

    name = "PHP"
    lists_objects = True
    collect_calls = "gc_collect_cycles()", "gc_enable()"

    def __init__(self, target: Target, engine: Engine, directory: Directory, heaps: Sequence[ZendHeap]) -> None:
        self.problems: list[Problem] = []
        self.version, self.where = heaps[0].version, heaps[0].where
        self._target, self._engine, self._directory, self._heaps = target, engine, directory, heaps
        self._memory = Memory(target)

    @cached_property
    def _globals(self) -> EngineGlobals:
        found = GlobalsSearch(self._target, self._engine, self._directory, self.where).find()
        if found.collector is not None and found.collector.active:
            what = "PHP was stopped in the middle of a collection: values that it was about to free are counted"
            self.problems.append(Problem(found.collector.buffer, what, False))
        return found

    @cached_property
    def _values(self) -> Values:
        """The values in blocks, except objects."""
        blocks = self._directory.blocks
        values = Values.of(blocks)
        for piece in self._pieces():
            for address in find_values(self._engine, blocks, piece, values):
                index = blocks.find(address)
                for whole in self._target.pieces(address, address + blocks.size(index)):
                    if len(whole.data) == blocks.size(index):
                        find_values(self._engine, blocks, whole, values)
        return values

    def _pieces(self) -> Iterator[Piece]:
        """Yield the memory of PHP's heaps."""
        for heap in self._heaps:
            for start, end in self._directory.of(heap):
                for piece in self._target.pieces(start, end):
                    if self._target.is_interrupted():
                        raise Interrupted
                    yield piece

    @cached_property
    def _objects(self) -> Objects:
        store = self._globals.store
        if store is None:
            return Objects((), array("I"), array("I"), array("Q"), (), (), ())
        return read_objects(self._target, self._engine, self._directory.blocks, store)

    @cached_property
    def _numbers(self) -> Sequence[int]:
        """The number of the type of each class. Classes with the same name have one type."""
        numbers = {name: number for number, name in enumerate(self._class_names, OBJECTS)}
        return [numbers[name] for name in self._objects.names]

    @cached_property
    def _class_names(self) -> list[str]:
        return list(dict.fromkeys(self._objects.names))

    @cached_property
    def _found(self) -> array[int]:
        """The number of the type of each block's value."""
        found = self._values.found[:]
        for index, number in zip(self._objects.blocks, self._objects.numbers):
            found[index] = self._numbers[number]
        return found

    @cached_property
    def _names(self) -> list[str]:
        return [*FIXED, *(f"array of {name_rank(rank)}" for rank in range(RANKS)), *self._class_names]

    def counters(self) -> Mapping[str, Count]:
        """Return what memory_get_usage(), memory_get_peak_usage() and gc_status() return in PHP."""
        found = {name: Count(value, "bytes") for name, value in self._heaps[0].read_counters().items() if name.endswith(")")}
        collector = self._globals.collector
        if collector is not None:
            found["gc_status() runs"], found["gc_status() collected"] = Count(collector.runs), Count(collector.collected)
            found["gc_status() threshold"], found["gc_status() roots"] = Count(collector.threshold), Count(collector.roots)
        return found

    def parts(self) -> Sequence[Part]:
        """Return the heaps of Zend's memory manager. They are also heaps of an allocator."""
        parts = []
        for heap in self._heaps:
            counters = heap.read_counters()
            chunks = f"{counters['chunks_count']:,} chunks of 2 MiB, {len(heap.chunks.huge):,} huge blocks"
            parts.append(Part("Zend's heap", self._directory.of(heap), counters["memory_get_usage()"], True, chunks))
        return parts

    def types(self) -> Sequence[Type]:
        """Return objects by class, arrays by length, and other values."""
        sums = self._values.sums
        counted = {number: (sums[SUMS * number], sums[SUMS * number + 1]) for number in range(OBJECTS)}
        blocks = self._directory.blocks
        for index, number in zip(self._objects.blocks, self._objects.numbers):
            count, size = counted.get(self._numbers[number], (0, 0))
            counted[self._numbers[number]] = (count + 1, size + blocks.size(index))
        return [Type(self._names[number], count, size) for number, (count, size) in counted.items() if count]

    def holders(self) -> Optional[Holders]:
        """Return the type of the value in each block. Strings refer to nothing."""
        merged = array("I", (IGNORED if number == STRINGS else number for number in self._found))
        return Holders(array("Q"), array("I"), array("I"), self._names, merged)

    def excluded_words(self) -> Optional[Exclusions]:
        """Exclude strings, the store of objects, the collector's list of possible cycles, unused
        ends of objects and of arrays, and words of objects that refer to code. `dead` has the ends
        that begin after more than MOST_USED words, and the released values."""
        ends = (Exclusion(EVERY_WORD << words & EVERY_WORD) for words in range(1, MOST_USED + 1))
        exclusions = (Exclusion(0), Exclusion(EVERY_WORD), *ends)
        return add_masks(self._excluded[0], exclusions, self._code_words.masks)

    @cached_property
    def _code_words(self) -> CodeWords:
        blocks = self._directory.blocks
        arenas = find_arenas(self._memory, blocks, self._global_names.compiler) if self._memory.size == 8 else ()
        return find_code_words(self._memory, blocks, self._objects, arenas) if arenas else CodeWords([], [])

    @cached_property
    def _excluded(self) -> tuple[bytearray, Sequence[Range]]:
        """The patterns of the blocks, and the unused memory of blocks that no pattern fits."""
        blocks, patterns = self._directory.blocks, bytearray(self._values.patterns)
        unused = list(map(Range, self._values.unused[::2], self._values.unused[1::2]))
        released = self._released
        stale = find_stale(self._engine, blocks, self._pieces(), released.runs)
        if len(stale) > 2 * MOST_STALE or released.is_full:
            what = "PHP has too many released values: findleaks lists only some of them, and the others count as references"
            self.problems.append(Problem(stale[2 * MOST_STALE] if len(stale) > 2 * MOST_STALE else 0, what, False))
        unused += map(Range, stale[: 2 * MOST_STALE : 2], stale[1 : 2 * MOST_STALE : 2])
        unused += released.unused
        store, collector = self._globals.store, self._globals.collector
        for address in (store.table if store is not None else 0, collector.buffer if collector is not None else 0):
            index = blocks.find(address)
            if index >= 0:
                patterns[index] = LEAF
        word = self._memory.size
        for index, used in find_unused_ends(self._memory, self._objects) if word == 8 else ():
            patterns[index] = LEAF - -used // word if used <= MOST_USED * word else 0
            if not patterns[index]:
                start = blocks.address(index)
                unused.append(Range(start - -used // word * word, start + blocks.size(index)))
        return patterns, unused

    @cached_property
    def _internal(self) -> InternalObjects:
        return InternalObjects(self._memory, self._directory.blocks, self._objects)

    @cached_property
    def _released(self) -> Released:
        """Values of which some may be released, and memory that is released as a whole."""
        released = Released(self._memory, self._directory.blocks, self._objects, self.version)
        released.runs.extend(self._values.runs)
        if self._memory.size == 8:
            released.add_objects()
            released.add_internal(self._internal, self._global_names.tables())
            for stack in self._globals.stacks:
                released.add_stack(stack.frame, stack.pages)
        return released

    def dead(self) -> Sequence[Range]:
        """Return the unused parts of stacks of frames, unused ends of long arrays and objects,
        released values, and words that refer to code."""
        stacks = (part for stack in self._globals.stacks for part in stack.unused)
        return merge_ranges([*stacks, *self._excluded[1], *self._code_words.ranges])

    def interior_offsets(self) -> Sequence[tuple[int, int]]:
        """Return the offset of the function in a closure. The frame of a generator or of a running
        function contains the address of this function, and no other address in the closure."""
        size, numbers = self._directory.blocks.size, zip(self._objects.blocks, self._objects.numbers)
        sizes = {size(index) for index, number in numbers if self._objects.names[number] == CLOSURE}
        return [(one, FUNCTION) for one in sorted(sizes)] if self._memory.size == 8 else ()

    def permanent_blocks(self) -> Sequence[int]:
        """Return the blocks that describe results of functions. No word refers to their start."""
        heaps = [part for heap in self._heaps for part in self._directory.of(heap)]
        return list(find_results(self._target, self._engine, self._directory.blocks, heaps, self._found))

    def object_types(self) -> Optional[ObjectTypes]:
        """Return the type of each value. A cycle is named after an object of a class of the
        program, or else after one of an internal class, such as a closure, or else after an
        array."""
        own = {name for name, entry in zip(self._objects.names, self._objects.classes) if self._memory.read(entry, 1) == USER_CLASS}
        kinds = array("I", [1] * ARRAYS + [2] * RANKS + [4 if name in own else 3 for name in self._class_names])
        return ObjectTypes(self._found, self._names, kinds, self.name, "PHP value", parts=(ELEMENTS,))

    @property
    def automatic_collection(self) -> Optional[bool]:
        collector = self._globals.collector
        return collector.enabled if collector is not None else None

    def reference_counts(self, graph: Graph, pieces: Iterable[Piece]) -> Optional[ReferenceCounts]:
        """Compare reference counts; see base.Runtime."""
        blocks, offsets = self._directory.blocks, dict(zip(self._objects.blocks, self._objects.addresses))

        def count(index: int) -> int:
            """Return the count of a value (zend_refcounted_h); 0 if it is immutable."""
            counted, kind = self._memory.members(offsets.get(index, blocks.address(index)), "II") or (0, 0)
            return 0 if kind & IMMUTABLE else counted

        def offset(index: int) -> int:
            return offsets[index] - blocks.address(index) if index in offsets else 0

        style = Style("zval_ptr_dtor()", CountVerdict.UNCOLLECTED, (ELEMENTS,), ARRAYS)
        return compare_counts(pieces, self._target.arch, graph, blocks, CountedValues(self._found, self._names, count, offset), style)

    @cached_property
    def _tables(self) -> Tables:
        return Tables(self._memory, self.version.startswith(("7.", "8.0.", "8.1.")))

    @cached_property
    def _name_source(self) -> Names:
        return Names(self._memory, self._directory.blocks, self._objects, self._tables, self._internal)

    def variables(self) -> Sequence[Variable]:
        """Return global variables, static properties, and those properties of objects that have
        large arrays."""
        return self._variables

    @cached_property
    def _variables(self) -> Sequence[Variable]:
        if self._memory.size != 8:
            return []
        return list(interruptible(self._target, self._name_source.variables(self._global_names.places())))

    @cached_property
    def _global_names(self) -> GlobalNames:
        return GlobalNames(self._target, self.where, self._tables)

    def name_member(self, address: int, holder: int = 0) -> str:
        index = self._directory.blocks.find(address)
        if index < 0 or self._memory.size != 8:
            return ""
        return self._name_source.member(address, index, self._found[index] == ELEMENTS)

    def describe(self, address: int) -> str:
        index = self._directory.blocks.find(address)
        number = self._found[index] if index >= 0 else len(self._names)
        return f"PHP {self._names[number]}" if number < len(self._names) and number != ELEMENTS else ""
