"""Reads the tables that libjvm exports: fields of its structures, and constants.

Source: src/hotspot/share/runtime/vmStructs.hpp of OpenJDK 17 and 21. gHotSpotVMStructs points to
entries {name of the type, of the field, and of the field's type, whether it is static, its offset,
its address if static}. libjvm also exports the offsets of these in an entry, and the size of an
entry. The last entry has no type."""

from __future__ import annotations

import os
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.target.base import Module, Symbol, Target

MOST = 1 << 16  # most entries of the table
NAME = 128  # most bytes of a name


class Field(NamedTuple):
    """A field: the `address` of a static one, else 0 and the `offset` in each object."""

    offset: int
    address: int


class Tables:
    """Look-ups by ("CollectedHeap", "_reserved"); None for anything unreadable."""

    def __init__(self, target: Target, module: Module) -> None:
        self.target = target
        self.memory = Memory(target)
        self._library = os.path.basename(module.path)
        self._texts: dict[int, str] = {}
        self._symbols: dict[str, Optional[Symbol]] = {}
        self.fields = self._fields()

    def symbol(self, name: str) -> int:
        """Return the address of a symbol of libjvm, or 0."""
        found = self._symbol(name)
        return found.address if found is not None else 0

    def symbol_size(self, name: str) -> int:
        """Return the size of a symbol of libjvm in bytes, or 0."""
        found = self._symbol(name)
        return found.size if found is not None else 0

    def _symbol(self, name: str) -> Optional[Symbol]:
        if name not in self._symbols:
            self._symbols[name] = self.target.symbol(name, self._library)
        return self._symbols[name]

    def _exported(self, name: str) -> Optional[int]:
        address = self.symbol(name)
        return self.memory.word(address) if address else None

    def _fields(self) -> dict[tuple[str, str], Field]:
        base, stride = self._exported("gHotSpotVMStructs"), self._exported("gHotSpotVMStructEntryArrayStride")
        names = ("TypeName", "FieldName", "IsStatic", "Offset", "Address")
        size = self.memory.size
        offsets = [self._exported(f"gHotSpotVMStructEntry{name}Offset") for name in names]
        places = [place for place in offsets if place is not None]
        if not base or not stride or stride > 4096 or len(places) < len(names) or max(places) > stride - size:
            return {}
        found: dict[tuple[str, str], Field] = {}
        for at in range(base, base + MOST * stride, stride):
            words = self.memory.words(at, stride // size)
            if words is None:
                break
            type_name, field_name, static, offset, address = (words[place // size] for place in places)
            if not type_name:
                break
            found[self.text(type_name), self.text(field_name)] = Field(0, address) if static & 0xFFFFFFFF else Field(offset, 0)
        return found

    def text(self, address: int) -> str:
        """Return a C string of at most NAME characters."""
        known = self._texts.get(address)
        if known is None:
            known = self._texts[address] = self._text(address)
        return known

    def _text(self, address: int) -> str:
        for length in (NAME, 32, 8):
            data = self.memory.read(address, length)
            if data:
                return data.split(b"\0")[0].decode("utf-8", "backslashreplace")
        return ""

    def place(self, kind: str, field: str, of: int = 0) -> int:
        """Return the address of a field (of the object at `of` unless static); 0 if there is
        none."""
        found = self.fields.get((kind, field))
        if found is None:
            return 0
        return found.address or (of + found.offset if of else 0)

    def word(self, kind: str, field: str, of: int = 0) -> Optional[int]:
        """Return the value of a field, as a word."""
        place = self.place(kind, field, of)
        return self.memory.word(place) if place else None

    def int32(self, kind: str, field: str, of: int = 0) -> Optional[int]:
        """Return the value of a field, as 32 bits."""
        place = self.place(kind, field, of)
        return self.memory.int32(place) if place else None
