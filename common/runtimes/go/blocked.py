"""Find goroutines that are blocked for good: they wait for channels, mutexes, WaitGroups or
condition variables that nothing else can reach.

Objects are marked from global variables, and from the goroutines that do not wait for such an
object. If the object for which a goroutine waits is marked, the goroutine may continue, so the
objects that it reaches are marked next. The goroutines that are left can never continue. Some
references to waiting goroutines do not count: those of the runtime's list of goroutines, of the
queues of channels, and of the table of waiting goroutines. Therefore the references in the g
structures of waiting goroutines, and in the records of this table, are ignored. Memory of C code
and of syscall.Mmap may refer to the objects, too, although Go's collector does not follow it.

Every other word of an object counts as a reference, also a stale one, so a blocked goroutine may be
missed, but none that can continue is reported."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine, Graph
from findleaks.engine.dominators import IGNORED, NO_ROOT
from findleaks.runtimes.go.mappings import (
    NativeMemory,
    exclude_stacks,
    iterate_native_words,
    list_data,
    list_mappings,
    list_thread_memory,
)
from findleaks.runtimes.go.objects import HeapObjects
from findleaks.runtimes.go.pointer_words import MOST_READ, pointer_offsets
from findleaks.runtimes.go.spans import joined_ranges
from findleaks.runtimes.go.types import Types
from findleaks.runtimes.go.waits import NEVER, WaitReader, is_readable, object_indices, record_indices
from findleaks.runtimes.slices import run_in_slices
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges

_LEAST = 10  # goroutines for which the search is worth its time
_MOST_ROUNDS = 16
# Maximum number of references from native memory. If there are more, nothing is reported.
_MOST_WORDS = 1 << 22
_RACE = "runtime.racecall"  # a function of programs that are built with -race


def find_blocked(
    memory: Memory,
    engine: Engine,
    types: Types,
    objects: HeapObjects,
    graph: Graph,
    structures: Mapping[int, int],
    every: Iterable[int],
    others: Callable[[], tuple[Sequence[Range], NativeMemory]],
) -> Optional[frozenset[int]]:
    """Return the numbers of the goroutines that are blocked for good; None if they are unknown.
    `structures`: the addresses of the goroutines' g structures, by number. `every`: the addresses
    of all g structures, including unused ones. `others`: returns memory of unknown use, and that of
    C code, stacks of threads included. Raises Interrupted."""
    reader = WaitReader(memory, engine, types, objects)
    if not reader.size:
        return None
    threads = objects.stacks.threads()
    never = frozenset(one.number for one in threads if one.reason in NEVER)
    if sum(map(is_readable, threads)) + len(never) < _LEAST:
        return never
    waits = reader.read(threads, structures)
    never |= frozenset(number for number, wait in waits.items() if not wait.objects)
    found = ((number, object_indices(objects, wait)) for number, wait in waits.items())
    blocked = {number: indices for number, indices in found if indices is not None}
    structure = types.find("runtime.g")
    known = pointer_offsets(types, structure, iter(range(MOST_READ))) if structure is not None else None
    pointers = range(0, reader.size - 7, 8) if known is None else known
    merged = array("I", [NO_ROOT]) * len(objects.blocks)
    for index in (*objects.blocks.find_all(array("Q", every))[0], *record_indices(objects, waits)):
        if index < len(merged):
            merged[index] = IGNORED
    foreign = _read_native_words(memory, engine, objects, graph, others) if blocked else array("Q")
    if foreign is None:
        return None
    for _ in range(_MOST_ROUNDS):
        live = [one for one in threads if one.number not in blocked and one.number not in never]
        tree = graph.dominators(1)
        tree.expect_leaf_trees()
        tree.merge_into_roots(merged)
        for words in (*objects.root_words(), objects.finalized_words(), foreign):
            tree.root_words(words, 0)
        for words in objects.stacks.words(live):
            tree.root_words(words, 0)
        for one in live:
            fields = memory.words(structures.get(one.number, 0), reader.size // 8)
            tree.root_words([fields[at // 8] for at in pointers] if fields else (), 0)
        run_in_slices(tree.compute, memory.target)
        reached = [number for number, indices in blocked.items() if any(tree.sum_retained(index).blocks for index in indices)]
        if not reached:
            return frozenset(blocked) | never
        for number in reached:
            del blocked[number]
    return None


def _read_native_words(
    memory: Memory, engine: Engine, objects: HeapObjects, graph: Graph, others: Callable[[], tuple[Sequence[Range], NativeMemory]]
) -> Optional[array[int]]:
    """Return the words outside of Go's memory that point into objects of Go; None if there are too
    many. The race detector maps memory that contains the addresses of all channels. It looks like
    mappings of C code, so if there is a race detector, mappings do not count, except those that
    slices of Go refer to."""
    found, seen = set[int](), 0
    unknown, native = others()
    if any(table.code_of(_RACE) is not None for table in objects.stacks.tables):
        variables = [*list_data(memory.target, native), *list_thread_memory(memory.target)]
        mappings = list_mappings(memory, objects, engine, graph, unknown)
        native = native._replace(ranges=merge_ranges([*variables, *mappings, *native.heaps]))
    for values in iterate_native_words(memory, engine, exclude_stacks(memory.target, engine, native), joined_ranges(objects.spans)):
        found.update(values)
        seen += len(values)
        if seen > _MOST_WORDS:
            return None
    return array("Q", found)
