"""Name the types of LuaJIT's FFI objects (cdata).

A cdata has the number of its type. CTState has a table of all types: for each type its kind with
flags, its size, and the address of its name. A struct without a name may have a typedef.

Source: src/lj_ctype.h (struct CType, struct CTState) of LuaJIT 2.1, 64-bit with LJ_GC64."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cached_property

from findleaks.allocators.memory import Memory
from findleaks.value_classes import NamedTuple

_NUMBER, _STRUCT, _POINTER, _ARRAY, _VOID, _ENUM, _FUNCTION, _TYPEDEF = range(8)
_KIND, _CHILD = 28, 0xFFFF  # shift of the kind in `info`; mask of the type that it refers to
_BOOLEAN, _FLOAT, _UNSIGNED = 1 << 27, 1 << 26, 1 << 23
_UNION = _REFERENCE = 1 << 23
_TYPE = struct.Struct("<II8xQ")  # info, size, name
_MOST = 1 << 16  # types; the number of a type has 16 bits
_DEEPEST = 4  # pointers to pointers


class _Type(NamedTuple):
    info: int
    size: int
    name: int


class FfiTypes:
    """The types of one state. `address` and `size`: those of its global_State. `text` returns the
    text of a string of Lua."""

    def __init__(self, memory: Memory, address: int, size: int, text: Callable[[int], str]) -> None:
        self._memory, self._address, self._size, self._text = memory, address, size, text

    @cached_property
    def _types(self) -> list[_Type]:
        for word in self._memory.words(self._address, self._size // 8) or ():
            found = self._memory.members(word, "PIIPP") if word and word % 8 == 0 else None
            if found is not None and found[4] == self._address and 0 < found[1] <= found[2] <= _MOST:
                data = self._memory.read(found[0], _TYPE.size * found[1])
                return [_Type(*one) for one in _TYPE.iter_unpack(data)] if data else []
        return []

    @cached_property
    def _typedefs(self) -> Mapping[int, str]:
        """The typedefs of types, by number of the type."""
        found = ((one.info & _CHILD, one.name) for one in self._types if one.info >> _KIND == _TYPEDEF and one.name)
        return {number: self._text(name) for number, name in found}

    def name(self, number: int, depth: int = 0) -> str:
        """Return the name of a type in C, or ""."""
        if not 0 < number < len(self._types) or depth > _DEEPEST:
            return ""
        one = self._types[number]
        kind = one.info >> _KIND
        if kind == _STRUCT and one.name:
            return f"{'union' if one.info & _UNION else 'struct'} {self._text(one.name)}"
        if kind == _ENUM and one.name:
            return f"enum {self._text(one.name)}"
        if kind in (_POINTER, _ARRAY):
            inner = self.name(one.info & _CHILD, depth + 1)
            return inner and inner + ("[]" if kind == _ARRAY else "&" if one.info & _REFERENCE else "*")
        if kind == _NUMBER and one.size <= 8:
            if one.info & _BOOLEAN:
                return "bool"
            if one.info & _FLOAT:
                return "double" if one.size == 8 else "float"
            if one.size == 1 and not one.info & _UNSIGNED:
                return "char"
            return f"{'u' if one.info & _UNSIGNED else ''}int{8 * one.size}_t"
        return "void" if kind == _VOID else self._typedefs.get(number, "")
