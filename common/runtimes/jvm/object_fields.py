"""Read fields of Java objects by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from findleaks.runtimes.jvm.fields import FieldReader
from findleaks.runtimes.jvm.java_classes import class_of
from findleaks.runtimes.jvm.layout import ObjectLayout
from findleaks.runtimes.jvm.tables import Tables

_CACHED = 1 << 14


class ObjectFields:
    """Reads the fields of the object at an address. If the object lacks a field, or if the field
    cannot be read, its value is 0."""

    def __init__(self, tables: Tables, layout: ObjectLayout) -> None:
        self._tables, self._layout, self._memory = tables, layout, tables.memory
        self.reader = FieldReader(tables)
        self._offsets = lru_cache(_CACHED)(self._read_offsets)

    def _read_offsets(self, klass: int) -> Mapping[str, int]:
        """Return the offsets of fields by name. If a class and its superclass have a field of the
        same name, the last one in the object counts. Example: `cont` of a VirtualThread."""
        return {one.name: one.offset for one in self.reader.instance(klass)}

    def klass(self, address: int) -> int:
        """Return the Klass of an object; 0 if it cannot be read."""
        return class_of(self._tables, self._layout, address) if address else 0

    def place(self, address: int, field: str) -> int:
        """Return the address of a field of an object; 0 if there is none."""
        klass = self.klass(address)
        offset = self._offsets(klass).get(field, 0) if klass else 0
        return address + offset if offset else 0

    def reference(self, address: int, field: str) -> int:
        """Return the object to which a field of an object refers; 0 if there is none."""
        place = self.place(address, field)
        return self.decode(place) if place else 0

    def decode(self, place: int) -> int:
        """Return the object to which the reference at `place` refers; 0 if there is none."""
        references = self._layout.references
        value = (self._memory.int32(place) if references.size == 4 else self._memory.word(place)) or 0
        return references.decode(value)

    def int32(self, address: int, field: str) -> int:
        """Return a field of 32 bits."""
        place = self.place(address, field)
        return self._memory.int32(place) or 0 if place else 0

    def int64(self, address: int, field: str) -> int:
        """Return a field of 64 bits."""
        place = self.place(address, field)
        return self._memory.word(place) or 0 if place else 0

    def constants(self, klass: int, limit: int) -> Mapping[int, str]:
        """Return the names of a class's constants of type int that are less than `limit`, by value.
        Example: "TIMED_PARKED", a state of a VirtualThread."""
        mirror = self._tables.oop("Klass", "_java_mirror", klass)
        found: dict[int, str] = {}
        for one in self.reader.statics(klass) if mirror else ():
            value = self._memory.int32(mirror + one.offset) if one.signature == "I" else None
            if value is not None and value < limit and one.name.isupper():
                found.setdefault(value, one.name)
        return found
