"""Rank CPython's types, so that a cycle is named after the object that identifies it best."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from findleaks.runtimes.cpython.types import HEAP_TYPE, Types

SUPPORT = (
    *("cell", "tuple", "dict", "list", "set", "frozenset", "mappingproxy", "traceback", "code"),
    *("builtin_function_or_method", "getset_descriptor", "member_descriptor", "wrapper_descriptor", "method_descriptor"),
    *("classmethod", "staticmethod", "property", "method", "function", "frame"),
)
"""Types of the interpreter whose objects are mostly parts of other objects. Types later in this
list give a better name."""

_PLACE = {name: place for place, name in enumerate(SUPPORT)}


def type_ranks(known: Types, names: Sequence[str]) -> array[int]:
    """Return a rank of at least 1 ("I") for each type, by its number.

    Classes that Python code defines have the highest ranks. Types of extensions, types of the
    interpreter, and the types in SUPPORT follow. Of two similar classes, the one whose name comes
    first has the higher rank. A cycle therefore has the same leak head in every run, wherever its
    objects were allocated."""
    keys = [_key(known, number, name) for number, name in enumerate(names)]
    order = {key: rank for rank, key in enumerate(sorted(set(keys), reverse=True), 1)}
    return array("I", map(order.__getitem__, keys))


def _key(known: Types, number: int, name: str) -> tuple[int, int, str]:
    """Return the sort key of a type. The type with the smallest key gives the best name."""
    if number >= known.foreign and known.flags[number] & HEAP_TYPE:
        return 0, 0, name
    if number < known.foreign or "." in name:
        return 1, 0, name
    place = _PLACE.get(name)
    return (2, 0, name) if place is None else (3, -place, name)
