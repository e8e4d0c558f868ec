"""Read the names that a Java program gave to its threads.

Sources: OpenJDK 8 to 25, src/java.base/share/classes/java/lang: Thread.java (`name`; an array of
characters in early versions of 8), String.java (`value`, `coder`); 21 and 25,
src/hotspot/share/gc/z/zAddress.hpp."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from findleaks.runtimes.jvm.fields import FieldReader
from findleaks.runtimes.jvm.java_classes import ClassReader, class_of
from findleaks.runtimes.jvm.layout import ObjectLayout, read_layout
from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.jvm.threads import java_threads

_MOST_NAME = 256  # characters of a name that are read
_MOST_SHIFT = 32
_STRING = "java.lang.String"
_CHARACTERS = ("char[]", "byte[]")


def java_thread_names(tables: Tables) -> Mapping[int, str]:
    """Return the names of Java threads by the kernel's number of the thread. Threads whose names
    cannot be read are left out."""
    layout = read_layout(tables)
    if layout is None:
        return {}
    reader = _NameReader(tables, layout)
    names = {kernel_thread(tables, thread): reader.name_of(thread) for thread in java_threads(tables)}
    return {tid: name for tid, name in names.items() if tid and name}


def kernel_thread(tables: Tables, thread: int) -> int:
    """Return the kernel's number of a JavaThread, 0 if it is unknown."""
    system = tables.word("JavaThread", "_osthread", thread) or tables.word("Thread", "_osthread", thread) or 0
    return tables.int32("OSThread", "_thread_id", system) or 0


def _color_bits(tables: Tables) -> int:
    """Return the number of low bits of a reference that are the collector's, for ZGC with
    generations; else 0. An object that was moved is not found with such a reference."""
    if not tables.is_set("UseZGC") or tables.is_set("ZGenerational") is False:
        return 0
    values = tables.word("ZGlobalsForVMStructs", "_instance_p")
    place = tables.word("ZGlobalsForVMStructs", "_ZPointerLoadShift", values or 0)
    shift = tables.memory.word(place) if place else None
    return shift if shift is not None and shift < _MOST_SHIFT else 0


class _NameReader:
    """Reads the name of an object of java.lang.Thread."""

    def __init__(self, tables: Tables, layout: ObjectLayout) -> None:
        self._tables, self._layout = tables, layout
        self._fields, self._classes = FieldReader(tables), ClassReader(tables)
        self._color = _color_bits(tables)

    def name_of(self, thread: int) -> str:
        """Return the name of a JavaThread, "" if it is unknown."""
        text = self._reference(self._tables.oop("JavaThread", "_threadObj", thread) >> self._color, "name")
        if self._class(text) in _CHARACTERS:
            return self._text(text, 1)
        if self._class(text) != _STRING:
            return ""
        coder = self._offset(text, "coder")
        data = self._tables.memory.read(text + coder, 1) if coder is not None else b"\1"
        return self._text(self._reference(text, "value"), data[0] & 1) if data else ""

    def _class(self, address: int) -> str:
        klass = class_of(self._tables, self._layout, address) if address else 0
        return self._classes.name(klass) if klass else ""

    def _offset(self, address: int, name: str) -> Optional[int]:
        klass = class_of(self._tables, self._layout, address) if address else 0
        return next((one.offset for one in self._fields.instance(klass) if one.name == name), None) if klass else None

    def _reference(self, address: int, name: str) -> int:
        """Return the object to which a field refers, 0 if there is none."""
        offset, references = self._offset(address, name), self._layout.references
        if offset is None:
            return 0
        memory = self._tables.memory
        value = (memory.int32(address + offset) if references.size == 4 else memory.word(address + offset)) or 0
        return references.base + (value << references.shift) >> self._color if value else 0

    def _text(self, array: int, is_wide: int) -> str:
        """Return the characters in an array, each of one byte or two bytes."""
        if self._class(array) not in _CHARACTERS:
            return ""
        header, memory = self._layout.header, self._tables.memory
        count = memory.int32(array + header.length_at) or 0
        klass = class_of(self._tables, self._layout, array)
        found = self._classes.read(klass)
        # The length is the number of elements, which have two bytes in a char[].
        size = count << found.row[2] if found is not None else 0
        data = memory.read(array + found.size, min(size, 2 * _MOST_NAME)) if found is not None else b""
        form = f"utf-16-{'le' if memory.arch.byteorder == 'little' else 'be'}" if is_wide else "latin-1"
        return data.decode(form, "replace").strip()
