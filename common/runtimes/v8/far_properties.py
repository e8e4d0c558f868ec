"""List the references of objects to values of properties that are outside of the object.

Such a value is in the object's array of properties, in its dictionary, or in its map. In a heap
snapshot, as V8 writes it, the object has an edge with the property's name to the value, too."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.runtimes.v8.heap_objects import WORD, HeapObjects
from findleaks.runtimes.v8.maps import Maps
from findleaks.runtimes.v8.metadata import TAG, TAG_MASK
from findleaks.runtimes.v8.properties import IN_ARRAY, Properties, Property
from findleaks.target.interruptible import interruptible
from findleaks.value_classes import NamedTuple

_MOST_SLOTS = 1 << 10  # words of an array of properties that are read


class FarProperty(NamedTuple):
    """A reference. `owner`: the object. `key`: the tagged address of the property's name. `value`:
    the tagged address of the value."""

    owner: int
    key: int
    value: int


def find_far_properties(memory: Memory, engine: Engine, maps: Maps, objects: HeapObjects, properties: Properties) -> Iterator[FarProperty]:
    """Yield the references of all objects, by map. Raises Interrupted."""
    wanted: dict[int, list[Property]] = {}  # by map; empty for maps with a dictionary
    for number, word in interruptible(memory.target, enumerate(objects.table.words)):
        data, first = maps.data(word), objects.table.firsts[number]
        if data is None or not first or data.instance_type < maps.first_receiver:
            continue
        own = properties.of(first) if not properties.has_dictionary(word) else ()
        far = [one for one in own if (one.slot >= 0 or not one.place) and not one.is_number]
        if far or properties.has_dictionary(word):
            wanted[number] = far
    # One pass over all objects: a heap has thousands of such maps.
    groups: dict[int, array[int]] = {number: array("I") for number in wanted}
    for index in interruptible(memory.target, objects.of_maps(wanted), 4096):
        groups[objects.numbers[index]].append(index)
    for number, indices in groups.items():
        if wanted[number]:
            yield from _of_map(memory, engine, objects, indices, wanted[number], properties.array_offset)
            continue
        data = maps.data(objects.table.words[number])
        is_global = data is not None and "js_global_object" in maps.names_of(data.instance_type)
        for index in interruptible(memory.target, indices):
            found = (properties.in_cells if is_global else properties.of)(objects.blocks.address(index))
            yield from (FarProperty(index, one.key, one.value) for one in found if one.value & TAG_MASK == TAG)


def _of_map(
    memory: Memory, engine: Engine, objects: HeapObjects, indices: array[int], far: Sequence[Property], offset: int
) -> Iterator[FarProperty]:
    """Yield the references of objects of one map, which has these properties. `offset`: where an
    object has the address of its array of properties."""
    constants = [one for one in far if not one.place and one.value & TAG_MASK == TAG]
    slots = [one for one in far if one.place and one.slot < _MOST_SLOTS]
    yield from (FarProperty(index, one.key, one.value) for one in constants for index in indices)
    if not slots or not offset:
        return
    data, missing = read_records(memory.target, engine, objects.blocks.columns_of(indices).address, offset + WORD)
    words = memory.arch.unpack(bytes(data))[offset // WORD :: offset // WORD + 1]
    owners = sorted(
        (word - TAG, index) for at, (word, index) in enumerate(zip(words, indices)) if word & TAG_MASK == TAG and at not in missing
    )
    for one in slots:
        place = IN_ARRAY + WORD * one.slot
        values, missing = read_records(memory.target, engine, array("Q", [start + place for start, _ in owners]), WORD)
        for at, ((_, index), value) in enumerate(zip(owners, memory.arch.unpack(bytes(values)))):
            if value & TAG_MASK == TAG and at not in missing:
                yield FarProperty(index, one.key, value)


class EdgeInserter:
    """Inserts edges of far properties into the edges of a snapshot, which are in the order of the
    objects.

    `counts` ("I") has the number of the other edges of each object. `edges` are (object, name,
    node): each gets the type `kind`."""

    def __init__(self, counts: array[int], edges: Sequence[tuple[int, int, int]], kind: int) -> None:
        self._edges = sorted(edges)
        self._kind = kind
        self._counts = counts

    def add_counts(self) -> array[int]:
        """Return the number of all edges of each object."""
        found = self._counts[:]
        for index, _, _ in self._edges:
            found[index] += 1
        return found

    def insert(self, parts: Iterator[array[int]]) -> Iterator[array[int]]:
        """Yield the parts, with the edges of each object after its other ones."""
        done, limit, following, places = 0, 0, 0, iter(self._edges)
        pending = next(places, None)
        for part in parts:
            out, start, count = array("I"), 0, len(part) // 3
            while pending is not None:
                limit += sum(self._counts[following : pending[0] + 1])
                following = max(following, pending[0] + 1)
                if limit > done + count:
                    break
                out += part[start : 3 * (limit - done)]
                start = 3 * (limit - done)
                out.extend((self._kind, pending[1], 7 * pending[2]))
                pending = next(places, None)
            out += part[start:]
            done += count
            yield out
        while pending is not None:
            yield array("I", (self._kind, pending[1], 7 * pending[2]))
            pending = next(places, None)
