"""Ranks CPython's types, to name a cycle after the object that identifies it best."""

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
    """Return a rank of at least 1 ("I") by type number.

    The highest ranks have classes that Python code defines, then types of extensions, then the
    interpreter's own, then SUPPORT. Of two similar classes, the first by name ranks higher. So a
    cycle has the same leak head in every run, wherever its objects were allocated."""
    keys = [_key(known, number, name) for number, name in enumerate(names)]
    order = {key: rank for rank, key in enumerate(sorted(set(keys), reverse=True), 1)}
    return array("I", map(order.__getitem__, keys))


def _key(known: Types, number: int, name: str) -> tuple[int, int, str]:
    """Return a sort key of a type; the least key gives the best name."""
    if number >= known.foreign and known.flags[number] & HEAP_TYPE:
        return 0, 0, name
    if number < known.foreign or "." in name:
        return 1, 0, name
    place = _PLACE.get(name)
    return (2, 0, name) if place is None else (3, -place, name)
