"""Measure the capacity that arrays, Maps and Sets do not use.

V8 gives an array room for 17 elements when the first one is pushed, and for half as many again when
it is full. When the table of a Map or Set is full, V8 doubles it; when three quarters of it are
free, V8 makes it smaller. Therefore, many small arrays, and tables from which most entries were
deleted, may take several times the memory of their contents.

Sources: V8 7.8 to 13.6 (Node 12 to 24), src/objects/js-objects.h (JSObject::NewElementsCapacity),
src/objects/fixed-array.h (map, length as a Smi, elements of 8 bytes), src/objects/js-array.h (the
length follows the elements), src/objects/ordered-hash-table.h (a fixed array: number of entries,
number of deleted entries, number of buckets, buckets, two entries for each bucket; an entry is key,
value and link, without a value in Sets)."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from findleaks.allocators.bulk import read_words
from findleaks.engine.terms import NO_BLOCK
from findleaks.runtimes.object_graph import LIVE
from findleaks.runtimes.v8.buffer_memory import list_maps
from findleaks.runtimes.v8.metadata import TAG, TAG_MASK
from findleaks.target.interruptible import interruptible
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.runtimes.v8.object_graph import V8Graph

_WORD = 8
_HEAD = 4  # words read of an array, Map or Set: map, properties, elements, length or table
_TABLE = 5  # words read of elements or of a table: map, length, and the numbers of a table
_SMI_SHIFT = 32
_ELEMENTS = ("fixed_array", "fixed_double_array")
_SOME = 1 << 14  # objects that are read together
_MOST = 1 << 17  # objects of a map that are read


class SpareCapacity(NamedTuple):
    """What arrays (`noun`: "arrays") or Maps and Sets do not use. `objects` of them have unused
    capacity. `bytes`: the size of their elements or entries, of which `spare` are unused. `alike`
    of them have `each` unused bytes; no other number of unused bytes has a larger sum. One of these
    objects is at the address `example`. `is_estimate`: whether only a sample of the objects was
    read, and its figures were multiplied."""

    noun: str
    objects: int
    bytes: int
    spare: int
    alike: int
    each: int
    example: int
    is_estimate: bool


def measure_spare_capacity(graph: V8Graph) -> list[SpareCapacity]:
    """Return what live arrays, and live Maps and Sets, do not use. Raises Interrupted."""
    return [
        _add_up("arrays", _list_arrays(graph)),
        _add_up("Maps and Sets", (one for kind, entry in (("js_map", 3), ("js_set", 2)) for one in _list_tables(graph, kind, entry))),
    ]


def _add_up(noun: str, found: Iterator[tuple[int, int, int, int]]) -> SpareCapacity:
    """Add up the figures of objects. `found` yields the address of each object, its capacity in
    bytes, the unused bytes, and the number of objects for which it stands."""
    total, counts, examples, most = 0, Counter[int](), dict[int, int](), 1
    for address, capacity, spare, weight in found:
        if spare:
            total += weight * capacity
            counts[spare] += weight
            # The first and last objects are often arrays of Node itself.
            number = counts[spare] // weight
            examples[spare] = address if not number & (number - 1) else examples.get(spare, address)
            most = max(most, weight)
    each, alike = max(counts.items(), key=lambda one: (one[0] * one[1], one[0]), default=(0, 0))
    unused = sum(spare * count for spare, count in counts.items())
    return SpareCapacity(noun, sum(counts.values()), total, unused, alike, each, examples.get(each, 0), most > 1)


def _list_arrays(graph: V8Graph) -> Iterator[tuple[int, int, int, int]]:
    # Arrays with few elements far apart have a dictionary instead.
    maps = set(_list_map_words(graph, _ELEMENTS))
    for address, head, elements, weight in _read(graph, ["js_array"], 2):
        # Several arrays of the same literal may refer to the same elements until one is changed.
        # These elements have no unused capacity.
        capacity, length = elements[1] >> _SMI_SHIFT, head[3] >> _SMI_SHIFT
        if length <= capacity and elements[0] in maps:
            yield address, _WORD * capacity, _WORD * (capacity - length), weight


def _list_tables(graph: V8Graph, kind: str, entry: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the same as `_list_arrays` for the Maps or Sets of a kind. `entry`: the words of an
    entry."""
    for address, _, table, weight in _read(graph, [kind], 3):
        used, buckets = table[2] >> _SMI_SHIFT, table[4] >> _SMI_SHIFT
        if used <= 2 * buckets and (3 + buckets * (1 + 2 * entry)) <= table[1] >> _SMI_SHIFT:
            yield address, _WORD * entry * 2 * buckets, _WORD * entry * (2 * buckets - used), weight


def _read(graph: V8Graph, kinds: Sequence[str], field: int) -> Iterator[tuple[int, Sequence[int], Sequence[int], int]]:
    """Yield the address of each live object of these kinds, its first words, and those of the
    object to which the word number `field` refers. If it refers to no object, the object is left
    out. If a map has more than _MOST objects, some of them are read, and the last value is the
    number of objects for which each stands; else it is 1."""
    kinds_of = graph.graph.kinds() if graph.graph is not None else memoryview(b"")
    for number in list_maps(graph, kinds) if graph.graph is not None else ():
        of_map = graph.of_map(number)
        weight = max(-(-len(of_map) // _MOST), 1)
        indices = array("I", (index for index in interruptible(graph.target, of_map[::weight], _SOME) if kinds_of[index] in LIVE))
        for first in interruptible(graph.target, range(0, len(indices), _SOME)):
            starts = graph.blocks.columns_of(indices[first : first + _SOME]).address
            heads = read_words(graph.target, graph.engine, starts, _HEAD)
            inner = [one - TAG if one & TAG_MASK == TAG else 0 for one in heads[field::_HEAD]]
            others = read_words(graph.target, graph.engine, inner, _TABLE)
            known = graph.indices_of(inner)
            for at, start in enumerate(starts):
                # In a damaged heap, words elsewhere may look like a length.
                if known[at] != NO_BLOCK:
                    yield start, heads[_HEAD * at : _HEAD * (at + 1)], others[_TABLE * at : _TABLE * (at + 1)], weight


def _list_map_words(graph: V8Graph, kinds: Sequence[str]) -> Sequence[int]:
    """Return the first words of objects of these kinds."""
    first = array("I", map(graph.first_objects.__getitem__, list_maps(graph, kinds)))
    return read_words(graph.target, graph.engine, graph.blocks.columns_of(first).address)
