"""Which words of V8's objects are strong references, by instance type.

A word is a strong reference if it has the tag of a reference and the address of an object.
Exceptions are raw data, and references that do not keep an object alive. The rows are those of
engine.ReferenceSearch.

Sources: V8 7.8 to 13.6 (Node 12 to 24), src/objects/objects-body-descriptors-inl.h (the words that
the collector visits), js-weak-refs.tq, hash-table.h, contexts.h."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.engine.terms import NO_BLOCK
from findleaks.runtimes.v8.engine import REFERENCE_ROW
from findleaks.runtimes.v8.heap_objects import WORD, HeapObjects
from findleaks.runtimes.v8.maps import Maps
from findleaks.runtimes.v8.metadata import TAG
from findleaks.target.base import Target
from findleaks.target.interruptible import interruptible

TO_END = 0xFFFFFFFF
_HALF = (1 << 32) - 1
_WITHOUT_NAMES = (
    "byte_array trusted_byte_array fixed_double_array heap_number bigint free_space filler one_pointer_filler two_pointer_filler "
    "feedback_metadata coverage_info foreign"
)
_WITHOUT = frozenset(_WITHOUT_NAMES.split())
"""Types of objects without references, other than sequential strings."""

_WEAK_WORDS = {"js_weak_ref": (24,), "weak_cell": (16, 24)}
"""Offsets of references that do not keep an object alive: the target of a WeakRef, the target and
the token of a cell of a FinalizationRegistry."""

_EPHEMERONS = "ephemeron_hash_table"
"""The table of a WeakMap or WeakSet. Its entries begin at FIRST_ENTRY; each is a key and a
value."""
FIRST_ENTRY = 40
_SOME = 1 << 18  # entries of tables that are looked up together


def reference_rows(maps: Maps, objects: HeapObjects) -> array[int]:
    """Return the rows of engine.ReferenceSearch for the maps of these objects."""
    rows = array("I")
    for number, word in enumerate(objects.table.words):
        first, end, mask = _row(maps, word, objects, number)
        rows.extend((first, end, mask & _HALF, mask >> 32))
    return rows


def _row(maps: Maps, word: int, objects: HeapObjects, number: int) -> tuple[int, int, int]:
    data = maps.data(word)
    if data is None:
        return WORD, WORD, 0
    names = maps.names_of(data.instance_type)
    if _WITHOUT.intersection(names) or maps.is_raw_string(data.instance_type):
        return WORD, WORD, 0
    if _EPHEMERONS in names:
        return WORD, FIRST_ENTRY, 0
    if data.instance_type == maps.native_context:
        # The next native context, a weak reference, and the address of the queue of microtasks.
        index = objects.blocks.find(objects.table.firsts[number])
        return WORD, objects.blocks.size(index) - 2 * WORD if index >= 0 else TO_END, 0
    mask = sum(1 << offset // WORD for name in names for offset in _WEAK_WORDS.get(name, ()))
    return WORD, TO_END, mask


def ephemerons(target: Target, engine: Engine, maps: Maps, objects: HeapObjects) -> Iterator[int]:
    """Yield a reference from each key of a WeakMap to its value, as source << 32 | target, in no
    order. The value lives as long as the key, if the table does. Raises Interrupted."""
    memory, blocks = Memory(target), objects.blocks
    wanted = [number for number, word in enumerate(objects.table.words) if _is_ephemeron_table(maps, word)]
    for index in interruptible(target, objects.of_maps(wanted)):
        start, size = blocks.address(index), blocks.size(index)
        for at in range(FIRST_ENTRY, size - 2 * WORD + 1, 2 * WORD * _SOME):
            words = memory.words(start + at, min(2 * _SOME, (size - at) // (2 * WORD) * 2)) or ()
            pairs = [(key - TAG, value - TAG) for key, value in zip(words[::2], words[1::2]) if key & value & 3 == TAG]
            indices = iter(objects.indices_of([*chain.from_iterable(pairs)]))
            yield from (key << 32 | value for key, value in zip(indices, indices) if NO_BLOCK not in (key, value))


def _is_ephemeron_table(maps: Maps, word: int) -> bool:
    data = maps.data(word)
    return data is not None and _EPHEMERONS in maps.names_of(data.instance_type)


def offsets_of(rows: Sequence[int], number: int, size: int) -> Iterator[int]:
    """Yield the offsets of the words of an object that may be references, ascending. `number` is
    that of its map, `size` in bytes."""
    first, end, low, high = rows[REFERENCE_ROW * number : REFERENCE_ROW * (number + 1)]
    mask = low | high << 32
    yield 0
    yield from (at for at in range(first, min(end, size) - WORD + 1, WORD) if at // WORD >= 64 or not mask >> at // WORD & 1)
