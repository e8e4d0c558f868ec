"""Find nested Java classes whose objects free the native memory of objects of the outer class.

An object that a Cleaner runs must not refer to the object that it cleans up after. Therefore it has
its own copy of the address of the native memory. Usually its class is nested in the class of the
other object, as in the documentation of java.lang.ref.Cleaner. For example, each
com.sun.jna.Memory has a com.sun.jna.Memory$MemoryDisposer. Without these pairs, two classes would
refer to each block, so that none of them would be its only owner.

Libraries also keep a table of these addresses. Its keys are objects of java.lang.Long, which own
nothing.

Source: JNA 5.18, src/com/sun/jna/Memory.java."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.bulk import MOST_RANGES, read_records
from findleaks.engine.contract import Engine
from findleaks.runtimes.jvm.engine import FIXED
from findleaks.runtimes.jvm.objects import JavaObjects
from findleaks.runtimes.object_graph import GARBAGE
from findleaks.target.base import Range, Target
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import merge_to_most, region_at

_WORD, _BOX = 8, "java.lang.Long"
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
    pairs = {
        inner: numbers[outer] for name, inner in numbers.items() for outer in [name.partition("$")[0]] if outer != name and outer in numbers
    }
    wanted = {number: array("I") for pair in pairs.items() for number in pair}
    for index in indices if pairs else ():
        found = wanted.get(objects.numbers[index])
        if found is not None and len(found) < _MOST and (kinds is None or kinds[index] not in GARBAGE):
            found.append(index)
    ranges = merge_to_most(native, MOST_RANGES)
    result: dict[int, int] = {}
    shared: set[int] = set()
    for inner, outer in pairs.items():
        if wanted[inner] and 2 * len(wanted[outer]) >= len(wanted[inner]):
            used = {word for words in _read_addresses(objects, engine, target, wanted[outer], ranges) for word in words}
            same = sum(not used.isdisjoint(words) for words in _read_addresses(objects, engine, target, wanted[inner], ranges))
            if 2 * same > len(wanted[inner]):
                result[inner] = outer
                shared |= used
    boxes = array("I", (index for index in indices if objects.numbers[index] == numbers.get(_BOX)) if shared else ())
    words_of_boxes = _read_addresses(objects, engine, target, boxes, ranges) if boxes else ()
    return result, {index for index, words in zip(boxes, words_of_boxes) if not shared.isdisjoint(words)}


def _read_addresses(
    objects: JavaObjects, engine: Engine, target: Target, indices: array[int], ranges: Sequence[Range]
) -> Iterator[list[int]]:
    """Yield the words of each object that are addresses in `ranges`. The objects are of one
    class."""
    size = objects.classes[objects.numbers[indices[0]]].size
    for first in interruptible(target, range(0, len(indices), _SOME)):
        starts = objects.blocks.columns_of(indices[first : first + _SOME]).address.tolist()
        data, _ = read_records(target, engine, starts, size)
        words = memoryview(data).cast("B")
        for at in range(len(starts)):
            record = words[at * size : (at + 1) * size]
            values = (int.from_bytes(record[place : place + _WORD], target.arch.byteorder) for place in range(0, size - _WORD + 1, _WORD))
            yield [value for value in values if region_at(ranges, value) is not None]
