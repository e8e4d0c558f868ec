"""The types of a process's Python objects. An object is a reference count, followed by its type.

Sources: Include/object.h, Include/cpython/object.h and Objects/typeobject.c of CPython 3.9 to 3.14.
A type is an object whose type is PyType_Type or another metatype."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target
from findleaks.target.ranges import nonzero_pieces
from findleaks.value_classes import NamedTuple

FLAGS = 21  # offset of tp_flags in a type, in words, since 3.8; it follows tp_as_buffer
TYPE_SUBCLASS = 1 << 31  # Py_TPFLAGS_TYPE_SUBCLASS: a type of types
READY = 1 << 12  # Py_TPFLAGS_READY
ROUNDS = 8  # levels of metatypes of metatypes that are followed


FREE_THREADED = 16
"""Bytes of an object before ob_ref_shared and ob_type in a 64-bit free-threaded build: ob_tid,
ob_flags, ob_mutex, ob_gc_bits, ob_ref_local (Include/object.h of 3.13 and 3.14)."""


class Interpreter(NamedTuple):
    """The interpreter in a file. `metatype` is the address of its PyType_Type. `shift` is the
    number of bytes at the start of an object, before the reference count and the type: 0, or
    FREE_THREADED."""

    image: Image
    metatype: int
    shift: int


def types(target: Target, engine: Engine, metatype: int, data: Sequence[Range], heaps: Sequence[Range], shift: int = 0) -> list[int]:
    """Return the addresses of all types, ascending. Static types are in `data` of files, others in
    `heaps`."""
    memory = Memory(target)
    found: set[int] = set()
    wanted = {metatype}
    ranges = [*data, *heaps]
    for _ in range(ROUNDS):
        fresh = {address - memory.size - shift for address in _find_values(target, engine, wanted, ranges)} - found
        known = {address for address in fresh if is_ready(memory, address + shift)}
        found |= known
        wanted = {address for address in known if (memory.word(address + shift + FLAGS * memory.size) or 0) & TYPE_SUBCLASS} - {metatype}
        if not wanted:
            break
    return sorted(found)


def is_ready(memory: Memory, address: int, wanted: int = READY) -> bool:
    """Return whether an object whose type is a metatype is a type in use, that is, has the flag
    `wanted`. `address` is the address of its reference count."""
    return (memory.word(address + FLAGS * memory.size) or 0) & wanted == wanted


def _find_values(target: Target, engine: Engine, wanted: Iterable[int], ranges: Iterable[Range]) -> Iterable[int]:
    """Yield the addresses of the words in these ranges that contain one of the `wanted` values."""
    values = sorted(wanted)
    for start, end in ranges:
        for piece in nonzero_pieces(target, start, end):
            yield from engine.search(piece, values[0], values[0] + 1) if len(values) == 1 else engine.search_any(piece, values)
