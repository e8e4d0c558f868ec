"""Name the members of Go's objects, by their type descriptors.

Sources: as types.py; a slice is pointer, length, capacity; a string pointer, length; an interface
type, value (Go 1.18 to 1.26, src/runtime: slice.go, string.go, runtime2.go)."""

from __future__ import annotations

from typing import Optional

from findleaks.runtimes.go.type_table import TypeNames
from findleaks.runtimes.go.types import ARRAY, INTERFACE, SLICE, STRING, STRUCT, Type, Types

_WORD = 8
_MAX_DEPTH = 64
_PARTS = {SLICE: ("", " length", " capacity"), STRING: ("", " length"), INTERFACE: (" type", " value")}
_STRUCTURES = {
    "channel": ("runtime.hchan",),
    "map": ("internal/runtime/maps.Map", "runtime.hmap"),
    "table": ("internal/runtime/maps.table",),
}
"""Names of the structures of objects that have no type descriptor, by the sort of the object (the
first part of its key in TypeNames)."""


def name_member(types: Types, names: TypeNames, value: int, offset: int) -> str:
    """Return the name of the member at this offset of an object with this type value: ".Next",
    "[3].Name length"; "" if it is unknown."""
    sort, address = names.keys[value >> 1]
    if sort in _STRUCTURES:
        address = next((found for name in _STRUCTURES[sort] if (found := types.find(name))), 0)
    elif sort not in ("type", "buckets"):
        return "code" if names.title(value).startswith("func ") and not offset else ""
    one = types.at(address) if address else None
    if one is None or not one.size:
        return ""
    if value & 1 and sort == "type":
        return f"[{offset // one.size}]{_member(types, one, offset % one.size)}" if one.size % _WORD == 0 else ""
    return _member(types, one, offset)


def list_starts(types: Types, names: TypeNames, value: int, offset: int) -> Optional[list[int]]:
    """Return where the parts of an object that contain the member at this offset begin: the object
    itself, and structures, arrays and their elements. Return None if the object's type is not
    known."""
    sort, address = names.keys[value >> 1]
    one = types.at(address) if sort == "type" else None
    if one is None or not one.size:
        return None
    start = offset // one.size * one.size if value & 1 else 0
    found = [0, start]
    for _ in range(_MAX_DEPTH):
        address = 0
        if one.kind == STRUCT:
            field = next((each for each in reversed(types.fields(one.address)) if each.offset <= offset - start), None)
            start, address = (start + field.offset, field.type) if field is not None else (start, 0)
        elif one.kind == ARRAY:
            address = one.elem
            inner = types.at(address)
            start += (offset - start) // inner.size * inner.size if inner is not None and inner.size else 0
        inner = types.at(address) if address else None
        if inner is None:
            break
        found.append(start)
        one = inner
    return found


def _member(types: Types, one: Type, offset: int) -> str:
    """Return the name of the member of a value; "" for the whole of a plain value, and for words
    after the first one of a plain value. Elements that are not whole words have no names."""
    made = ""
    for _ in range(_MAX_DEPTH):
        inner = None
        if one.kind == STRUCT:
            field = next((each for each in reversed(types.fields(one.address)) if each.offset <= offset), None)
            inner = types.at(field.type) if field is not None else None
            if field is None or inner is None or offset - field.offset >= inner.size:
                return ""  # padding
            made, offset = f"{made}.{field.name}", offset - field.offset
        elif one.kind == ARRAY:
            inner = types.at(one.elem)
            if inner is None or inner.size % _WORD or not inner.size:
                return made if not offset else ""
            made, offset = f"{made}[{offset // inner.size}]", offset % inner.size
        if inner is None:
            break
        one = inner
    parts = _PARTS.get(one.kind, ("",))
    return made + parts[offset // _WORD] if offset // _WORD < len(parts) else ""
