"""Read single Java objects, without a walk over the heap: the class, fields, and text of Strings.

Source: OpenJDK 8 to 25, src/java.base/share/classes/java/lang/String.java (`value`, `coder`)."""

from __future__ import annotations

from collections.abc import Mapping

from findleaks.runtimes.jvm.java_classes import CLASS, ClassReader
from findleaks.runtimes.jvm.layout import ObjectLayout
from findleaks.runtimes.jvm.object_fields import ObjectFields
from findleaks.runtimes.jvm.tables import Tables

_MOST_SUPERS = 64
_MOST_TEXT = 256  # characters of a String that are read
_STRING = "java.lang.String"
_CHARACTERS = ("char[]", "byte[]")


class SingleObjects(ObjectFields):
    """Reads objects at known addresses. If an object is damaged, its class is "", and the value of
    its fields is 0."""

    def __init__(self, tables: Tables, layout: ObjectLayout) -> None:
        super().__init__(tables, layout)
        self._classes = ClassReader(tables)

    def _read_offsets(self, klass: int) -> Mapping[str, int]:
        """Return the offsets of fields by name. If several classes of an object have a field of the
        same name, the field of the topmost superclass counts. Example: a program's subclass of
        Thread may also have a field `name`."""
        found: dict[str, int] = {}
        for _ in range(_MOST_SUPERS):
            if not klass:
                break
            found.update((one.name, one.offset) for one in self.reader.instance(klass))
            klass = self._tables.word("Klass", "_super", klass) or 0
        return found

    def class_name(self, address: int) -> str:
        """Return the name of an object's class, or ""."""
        klass = self.klass(address)
        return self._classes.name(klass) if klass else ""

    def type_name(self, address: int) -> str:
        """Return the name of an object's class. For the object of a class A, this is
        "java.lang.Class for A"."""
        name = self.class_name(address)
        offset = self._tables.int32("java_lang_Class", "_klass_offset") if name == CLASS else None
        klass = self._memory.word(address + offset) if offset else 0
        of = self._classes.name(klass) if klass else ""
        return f"{name} for {of}" if of else name

    def text(self, address: int) -> str:
        """Return the text of a String, or of an array of characters; "" if it is unknown."""
        if self.class_name(address) in _CHARACTERS:
            return self._characters(address, 1)
        if self.class_name(address) != _STRING:
            return ""
        coder = self.place(address, "coder")
        data = self._memory.read(coder, 1) if coder else b"\1"
        return self._characters(self.reference(address, "value"), data[0] & 1) if data else ""

    def _characters(self, array: int, is_wide: int) -> str:
        """Return the characters in an array, each of one byte or two bytes."""
        if self.class_name(array) not in _CHARACTERS:
            return ""
        header, memory = self._layout.header, self._memory
        count = memory.int32(array + header.length_at) or 0
        found = self._classes.read(self.klass(array))
        # The length is the number of elements, which have two bytes in a char[].
        size = count << found.row[2] if found is not None else 0
        data = memory.read(array + found.size, min(size, 2 * _MOST_TEXT)) if found is not None else b""
        form = f"utf-16-{'le' if memory.arch.byteorder == 'little' else 'be'}" if is_wide else "latin-1"
        return data.decode(form, "replace").strip()
