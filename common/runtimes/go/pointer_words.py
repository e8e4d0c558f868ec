"""Compute which words of a type are pointers for Go's collector, from the fields of the type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from findleaks.runtimes.go.types import ARRAY, CHAN, FUNC, INTERFACE, MAP, POINTER, SLICE, STRING, STRUCT, UNSAFE, Types

_MOST_LEVELS, _MOST_WORDS = 16, 1 << 14
MOST_READ = 1 << 22  # reads of descriptors; that of an array's element type is read repeatedly
_WORD = 8
_POINTERS = (POINTER, UNSAFE, CHAN, MAP, FUNC, STRING, SLICE)


def pointer_offsets(types: Types, address: int, left: Iterator[int]) -> Optional[list[int]]:
    """Return the offsets in bytes of the pointers in a type; None if the type cannot be read, or if
    its data are inconsistent. `left` has one element for each descriptor that may still be read.
    This limit is necessary, because types of a corrupt core may be nested without end."""
    one = types.at(address)
    if one is None or one.size > _MOST_WORDS * _WORD:
        return None
    try:
        found = list(_pointers(types, address, 0, 0, left))
    except ValueError:
        return None
    return found if all(at % _WORD == 0 and at + _WORD <= one.size for at in found) else None


def _pointers(types: Types, address: int, base: int, level: int, left: Iterator[int]) -> Iterator[int]:
    """Yield the offsets of pointers. Raises ValueError if a type cannot be read."""
    one = types.at(address)
    if one is None or level > _MOST_LEVELS or next(left, None) is None:
        raise ValueError(address)
    if not one.pointers:
        return  # no pointers, or a pointer to memory that is not in Go's heap
    if one.kind in _POINTERS:
        yield base
    elif one.kind == INTERFACE:
        yield base + _WORD  # the first word refers to a type or itab, not to an object
    elif one.kind == STRUCT:
        for field in types.fields(address):
            yield from _pointers(types, field.type, base + field.offset, level + 1, left)
    elif one.kind == ARRAY:
        element = types.at(one.elem)
        if element is None or not element.size or one.size // element.size > _MOST_WORDS:
            raise ValueError(address)
        for at in range(0, one.size, element.size):
            yield from _pointers(types, one.elem, base + at, level + 1, left)
