"""Which object of a cycle a person would name: ranks of CPython's types."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from findleaks.runtimes.cpython.types import HEAP_TYPE, Types

SUPPORT = (
    *("cell", "tuple", "dict", "list", "set", "frozenset", "mappingproxy", "traceback", "code"),
    *("builtin_function_or_method", "getset_descriptor", "member_descriptor", "wrapper_descriptor", "method_descriptor"),
    *("classmethod", "staticmethod", "property", "method", "function", "frame"),
)
"""The interpreter's types whose objects are mostly parts of other objects. The later in this list,
the better a name for the whole."""

_PLACE = {name: place for place, name in enumerate(SUPPORT)}


def type_ranks(known: Types, names: Sequence[str]) -> array[int]:
    """By type number, a rank of at least 1 ("I"). Instances of classes that Python code defines
    come first, then those of extensions' types, then the interpreter's own, then SUPPORT. Of two
    classes alike, the first by name ranks higher: a cycle of both has the same head wherever its
    objects were allocated, and in every run."""
    keys = [_key(known, number, name) for number, name in enumerate(names)]
    order = {key: rank for rank, key in enumerate(sorted(set(keys), reverse=True), 1)}
    return array("I", map(order.__getitem__, keys))


def _key(known: Types, number: int, name: str) -> tuple[int, int, str]:
    """Sort key of a type: the least is the one to name."""
    if number >= known.foreign and known.flags[number] & HEAP_TYPE:
        return 0, 0, name
    if number < known.foreign or "." in name:
        return 1, 0, name
    place = _PLACE.get(name)
    return (2, 0, name) if place is None else (3, -place, name)
