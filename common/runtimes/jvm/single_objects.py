"""Read single Java objects, without a walk over the heap: the class, fields, and text of Strings.

Source: OpenJDK 8 to 25, src/java.base/share/classes/java/lang/String.java (`value`, `coder`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from findleaks.runtimes.jvm.fields import FieldReader
from findleaks.runtimes.jvm.java_classes import CLASS, ClassReader, class_of
from findleaks.runtimes.jvm.layout import ObjectLayout
from findleaks.runtimes.jvm.tables import Tables

_MOST_TEXT = 256  # characters of a String that are read
_MOST_SUPERS = 64
_STRING = "java.lang.String"
_CHARACTERS = ("char[]", "byte[]")
_CACHED = 1 << 10


class SingleObjects:
    """Reads objects at known addresses. If an object is damaged, its class is "", and the value of
    its fields is 0."""

    def __init__(self, tables: Tables, layout: ObjectLayout) -> None:
        self._tables, self._layout = tables, layout
        self._fields, self._classes = FieldReader(tables), ClassReader(tables)
        self._offsets = lru_cache(_CACHED)(self._read_offsets)

    def class_name(self, address: int) -> str:
        """Return the name of an object's class, or ""."""
        klass = class_of(self._tables, self._layout, address) if address else 0
        return self._classes.name(klass) if klass else ""

    def type_name(self, address: int) -> str:
        """Return the name of an object's class. For the object of a class A, this is
        "java.lang.Class for A"."""
        name = self.class_name(address)
        offset = self._tables.int32("java_lang_Class", "_klass_offset") if name == CLASS else None
        klass = self._tables.memory.word(address + offset) if offset else 0
        of = self._classes.name(klass) if klass else ""
        return f"{name} for {of}" if of else name

    def uncolored(self, reference: int) -> int:
        """Return the address of the object to which a reference in memory refers, without the bits
        of the collector."""
        return self._tables.decode_oop(reference)

    def place(self, address: int, field: str) -> int:
        """Return the address of a field of an object; 0 if there is none."""
        klass = class_of(self._tables, self._layout, address) if address else 0
        offset = self._offsets(klass).get(field, 0) if klass else 0
        return address + offset if offset else 0

    def decode(self, place: int) -> int:
        """Return the object to which the reference at `place` refers, 0 if there is none."""
        memory, references = self._tables.memory, self._layout.references
        value = (memory.int32(place) if references.size == 4 else memory.word(place)) or 0
        return references.decode(value)

    def reference(self, address: int, field: str) -> int:
        """Return the object to which a field of an object refers, 0 if there is none."""
        place = self.place(address, field)
        return self.decode(place) if place else 0

    def int32(self, address: int, field: str) -> int:
        """Return a field of an object that is an int."""
        place = self.place(address, field)
        return self._tables.memory.int32(place) or 0 if place else 0

    def text(self, address: int) -> str:
        """Return the text of a String, or of an array of characters; "" if it is unknown."""
        if self.class_name(address) in _CHARACTERS:
            return self._characters(address, 1)
        if self.class_name(address) != _STRING:
            return ""
        coder = self.place(address, "coder")
        data = self._tables.memory.read(coder, 1) if coder else b"\1"
        return self._characters(self.reference(address, "value"), data[0] & 1) if data else ""

    def _read_offsets(self, klass: int) -> Mapping[str, int]:
        """Return the offsets of fields by name. If several classes have a field of this name, it is
        that of the topmost superclass."""
        found: dict[str, int] = {}
        for _ in range(_MOST_SUPERS):
            if not klass:
                break
            found.update((one.name, one.offset) for one in self._fields.instance(klass))
            klass = self._tables.word("Klass", "_super", klass) or 0
        return found

    def _characters(self, array: int, is_wide: int) -> str:
        """Return the characters in an array, each of one byte or two bytes."""
        if self.class_name(array) not in _CHARACTERS:
            return ""
        header, memory = self._layout.header, self._tables.memory
        count = memory.int32(array + header.length_at) or 0
        found = self._classes.read(class_of(self._tables, self._layout, array))
        # The length is the number of elements, which have two bytes in a char[].
        size = count << found.row[2] if found is not None else 0
        data = memory.read(array + found.size, min(size, 2 * _MOST_TEXT)) if found is not None else b""
        form = f"utf-16-{'le' if memory.arch.byteorder == 'little' else 'be'}" if is_wide else "latin-1"
        return data.decode(form, "replace").strip()
