"""Find nested Java classes whose objects free the native memory of objects of the outer class.

When an object is garbage, a Cleaner runs a second object, which must not refer to the first one.
Therefore the second object has its own copy of the address of the native memory. Usually its class
is nested in the class of the first object, as in the documentation of java.lang.ref.Cleaner. For
example, each com.sun.jna.Memory has a com.sun.jna.Memory$MemoryDisposer. Without these pairs, two
classes would refer to each block, so that none of them would be its only owner.

Libraries also keep a table of these addresses. Its keys are objects of java.lang.Long, which own
nothing.

Source: JNA 5.18, src/com/sun/jna/Memory.java."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.bulk import MOST_RANGES, find_pointers_into, read_records
from findleaks.engine.contract import Engine
from findleaks.runtimes.jvm.engine import FIXED
from findleaks.runtimes.jvm.objects import JavaObjects
from findleaks.runtimes.object_graph import GARBAGE
from findleaks.target.base import Piece, Range, Target
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import merge_to_most

_BOX = "java.lang.Long"
_MOST = 1 << 16  # objects of a class that are read
_SOME = 1 << 14  # objects that are read together


def find_cleanup_classes(
    objects: JavaObjects, engine: Engine, target: Target, indices: Sequence[int], native: Sequence[Range], kinds: Optional[memoryview]
) -> tuple[dict[int, int], set[int]]:
    """Return nested classes with their outer class, by number, if most live objects of the nested
    class contain the same address of native memory as a live object of the outer class. Also return
    the objects of java.lang.Long, by index, that contain one of these addresses.

    indices: the objects with a word that points into `native`. kinds: see `find_holders`. Raises
    Interrupted."""
    numbers = {one.name: number for number, one in enumerate(objects.classes) if one.kind == FIXED}
    nested: dict[int, list[int]] = {}
    for name, number in numbers.items():
        outermost = name.partition("$")[0]
        if outermost != name and outermost in numbers:
            nested.setdefault(numbers[outermost], []).append(number)
    wanted = {number: array("I") for outer, some in nested.items() for number in (outer, *some)}
    for index in indices if nested else ():
        found = wanted.get(objects.numbers[index])
        if found is not None and len(found) < _MOST and (kinds is None or kinds[index] not in GARBAGE):
            found.append(index)
    reader = _AddressReader(objects, engine, target, merge_to_most(native, MOST_RANGES))
    result: dict[int, int] = {}
    shared: set[int] = set()
    for outer, some in nested.items():
        some = [inner for inner in some if wanted[inner] and 2 * len(wanted[outer]) >= len(wanted[inner])]
        used = {address for _, address in reader.read(wanted[outer])} if some else set()
        for inner in some:
            same = {at for at, address in reader.read(wanted[inner]) if address in used}
            if 2 * len(same) > len(wanted[inner]):
                result[inner] = outer
                shared |= used
    boxes = array("I", (index for index in indices if objects.numbers[index] == numbers.get(_BOX)) if shared else ())
    return result, {boxes[at] for at, address in reader.read(boxes) if address in shared}


class _AddressReader:
    """Reads addresses in `ranges` from objects."""

    def __init__(self, objects: JavaObjects, engine: Engine, target: Target, ranges: Sequence[Range]) -> None:
        self._objects, self._engine, self._target, self._ranges = objects, engine, target, ranges

    def read(self, indices: array[int]) -> Iterator[tuple[int, int]]:
        """Yield each word of the objects that is an address in the ranges, after the position of
        its object in `indices`. The objects are of one class."""
        objects = self._objects
        size = objects.classes[objects.numbers[indices[0]]].size if indices else 0
        for first in interruptible(self._target, range(0, len(indices), _SOME)):
            starts = objects.blocks.columns_of(indices[first : first + _SOME]).address.tolist()
            data, _ = read_records(self._target, self._engine, starts, size)
            places, values = find_pointers_into(self._engine, Piece(0, memoryview(data)), self._ranges)
            yield from ((first + place // size, value) for place, value in zip(places, values))
