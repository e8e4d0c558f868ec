"""The types of a process's Python objects: an object is a reference count, then its type.

Sources: Include/object.h, Include/cpython/object.h and Objects/typeobject.c of CPython 3.9 to 3.14.
A type is an object whose type is PyType_Type or another metatype."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target
from findleaks.target.ranges import nonzero_pieces

FLAGS = 21  # offset of tp_flags in a type, in words, since 3.8: behind tp_as_buffer
TYPE_SUBCLASS = 1 << 31  # Py_TPFLAGS_TYPE_SUBCLASS: a type of types
READY = 1 << 12  # Py_TPFLAGS_READY
ROUNDS = 8  # levels of metatypes of metatypes that are followed


def types(target: Target, engine: Engine, metatype: int, data: Sequence[Range], heaps: Sequence[Range]) -> list[int]:
    """Addresses of all types, ascending: static ones in files' `data`, others in the `heaps`."""
    memory = Memory(target)
    found: set[int] = set()
    wanted = {metatype}
    ranges = [*data, *heaps]
    for _ in range(ROUNDS):
        fresh = {address - memory.size for address in _named(target, engine, wanted, ranges)} - found
        known = {address for address in fresh if _ready(memory, address)}
        found |= known
        wanted = {address for address in known if (memory.word(address + FLAGS * memory.size) or 0) & TYPE_SUBCLASS} - {metatype}
        if not wanted:
            break
    return sorted(found)


def _ready(memory: Memory, address: int) -> bool:
    """Whether an object that names a type of types is a type in use: these have a flag."""
    return bool((memory.word(address + FLAGS * memory.size) or 0) & READY)


def _named(target: Target, engine: Engine, wanted: Iterable[int], ranges: Iterable[Range]) -> Iterable[int]:
    values = sorted(wanted)
    for start, end in ranges:
        for piece in nonzero_pieces(target, start, end):
            yield from engine.search(piece, values[0], values[0] + 1) if len(values) == 1 else engine.search_any(piece, values)
