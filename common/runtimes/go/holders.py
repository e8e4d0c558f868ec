"""List the Go objects that refer to native memory, such as a struct with a pointer that C returned
(cgo)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from findleaks.allocators.bulk import MOST_RANGES, search_ranges
from findleaks.engine.columns import BlockColumns
from findleaks.engine.contract import Engine, Graph
from findleaks.engine.terms import NO_BLOCK, State
from findleaks.runtimes.base import Holders
from findleaks.runtimes.go.engine import NONE
from findleaks.runtimes.go.objects import UNTYPED, HeapObjects
from findleaks.runtimes.go.spans import joined_ranges
from findleaks.runtimes.object_graph import GARBAGE
from findleaks.target.base import Range
from findleaks.target.ranges import merge_to_most, range_at


def find_free_slots(objects: HeapObjects, engine: Engine, native: Sequence[Range]) -> list[Range]:
    """Return the free slots with a word that points into `native`. Go does not clear a slot when
    it frees the object, so the object's pointers to memory of C code remain."""
    columns = _find_slots(objects, engine, native, State.FREE)[1]
    return [Range(address, address + size) for address, size in zip(columns.address, columns.size)]


def _find_slots(objects: HeapObjects, engine: Engine, native: Sequence[Range], state: State) -> tuple[array[int], BlockColumns]:
    """Return the slots in this state with a word that points into `native`: indices and columns."""
    found: set[int] = set()
    searched = merge_to_most(native, MOST_RANGES)
    for piece in objects.pieces(joined_ranges(objects.spans)):
        found.update(objects.blocks.find_all(search_ranges(engine, piece, searched))[0])
    indices = array("I", sorted(found - {NO_BLOCK}))
    states = objects.blocks.columns_of(indices).state
    indices = array("I", (index for index, one in zip(indices, states) if one == state))
    return indices, objects.blocks.columns_of(indices)


def find_holders(objects: HeapObjects, engine: Engine, graph: Graph, native: Sequence[Range]) -> Holders:
    """Return the objects with a word that points into `native`, the allocators' heaps.

    The result has a type for the live objects of each Go type, then a type for the garbage of each
    Go type, and then one for garbage with finalizers: a finalizer may free what the object refers
    to."""
    indices, columns = _find_slots(objects, engine, native, State.IN_USE)
    names = objects.names
    titles = [*(names.title(value) for value in range(2 * len(names.names))), UNTYPED]
    count, finalized, types = len(titles), objects.finalized, array("I")
    for index, address in zip(indices, columns.address):
        value = objects.type_value(index)
        section = 0
        if graph.kind(index) in GARBAGE:
            section = 1 if range_at(finalized, address) is None else 2
        types.append((value if value != NONE else count - 1) + section * count)
    return Holders(array("Q", columns.address), array("Q", columns.size), types, titles * 3, garbage=count, freed=2 * count)
