"""Read Java classes: their names, the sizes of their instances, and the offsets of references.

Sources: OpenJDK 17, 21 and 25, src/hotspot/share/oops: klass.hpp (layout helper), instanceKlass.hpp
(the maps of references follow the vtable and the itable), symbol.hpp."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, Optional

from findleaks.runtimes.jvm.constant_pool import read_symbol
from findleaks.runtimes.jvm.engine import ARRAY, FIXED, MIRROR, OBJECTS
from findleaks.runtimes.jvm.fields import FieldReader
from findleaks.runtimes.jvm.layout import ObjectLayout
from findleaks.runtimes.jvm.tables import Tables

_CACHED = 1 << 14  # names of classes
_MOST_SIZE = 1 << 20  # bytes of a plausible object that is not an array
_MOST_MAPS, _MOST_TABLE = 1 << 12, 1 << 20
_MOST_SUPERS = 1 << 10
_LEAST_REFERENCE = 4  # bytes of a compressed reference
_PRIMITIVES = {"B": "byte", "C": "char", "D": "double", "F": "float", "I": "int", "J": "long", "S": "short", "Z": "boolean"}
_TAG, _OBJECT_TAG = 30, 2  # of a layout helper: Klass::_lh_array_tag_shift, _lh_array_tag_obj_value
CLASS, STACK_CHUNK, VIRTUAL_THREAD = "java.lang.Class", "jdk.internal.vm.StackChunk", "java.lang.VirtualThread"
SUSPENDED = 1 << 8  # a bit of the state of a VirtualThread; the states are less


class JavaClass(NamedTuple):
    """A class. `klass`: the address of its Klass. `name`: the name as in Java source ("byte[]").
    `row` and `maps`: see engine.ClassTable."""

    klass: int
    name: str
    row: tuple[int, int, int, int]
    maps: array[int]  # "I"

    @property
    def kind(self) -> int:
        """One of engine.FIXED, ARRAY, OBJECTS, MIRROR."""
        return self.row[0]

    @property
    def size(self) -> int:
        """The size of an instance in bytes. For an array, it is the offset of the first element."""
        return self.row[1]

    def reference_offsets(self, size: int) -> Iterator[int]:
        """Yield the offset of each reference in an instance. `size`: bytes of a reference."""
        for start, count in zip(self.maps[::2], self.maps[1::2]):
            yield from range(start, start + count * size, size)


def java_name(name: str) -> str:
    """Return a name as it is written in Java source, such as "java.lang.String[]". `name`: the
    JVM's internal name, such as "[Ljava/lang/String;"."""
    element = name.lstrip("[")
    depth = len(name) - len(element)
    if depth:
        element = element[1:-1] if element.startswith("L") and element.endswith(";") else _PRIMITIVES.get(element, element)
    return element.replace("/", ".").replace("+0x", "/0x") + "[]" * depth


class ClassReader:
    """Reads the class at the address of a Klass."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._mirror_size = tables.int32("java_lang_Class", "_oop_size_offset") or 0
        self.name = lru_cache(_CACHED)(self._name)
        # The tables of JDK 8 lack this offset. The field follows the size.
        self._statics = tables.int32("java_lang_Class", "_static_oop_field_count_offset") or self._mirror_size + 4

    def read(self, klass: int) -> Optional[JavaClass]:
        """Return a class; None if there is none at this address."""
        tables = self._tables
        name, helper = self.name(klass), tables.int32("Klass", "_layout_helper", klass)
        if not name or helper is None:
            return None
        if helper >> 31:
            header, shift, tag = helper >> 16 & 0xFF, helper & 0xFF, helper >> _TAG
            kind = OBJECTS if tag == _OBJECT_TAG else ARRAY
            return JavaClass(klass, name, (kind, header, shift, 0), array("I")) if header >= 12 and shift <= 3 else None
        size, maps = helper & ~7, self._maps(klass)
        # The references of damaged maps could take more than the instance, and much time to read.
        if not 8 <= size <= _MOST_SIZE or maps is None or sum(maps[1::2]) * _LEAST_REFERENCE > size:
            return None
        if name == CLASS:
            # Static variables follow the instance variables of java.lang.Class, references first.
            return JavaClass(klass, name, (MIRROR, self._mirror_size, self._statics, size), maps) if self._mirror_size else None
        return JavaClass(klass, name, (FIXED, size, *self._stack_fields(klass, name)), maps)

    def _stack_fields(self, klass: int, name: str) -> tuple[int, int]:
        """Return the offsets of the fields of a StackChunk with the number of words of its stack,
        and with that of unused ones; 0, 0 for other classes. Such an object contains frames of a
        virtual thread (stackChunkOop.hpp, instanceStackChunkKlass.inline.hpp of OpenJDK 21 and
        25)."""
        if name != STACK_CHUNK:
            return 0, 0
        fields = {one.name: one.offset for one in FieldReader(self._tables).instance(klass)}
        return (fields["size"], fields["sp"]) if {"size", "sp"} <= fields.keys() else (0, 0)

    def supers(self, klass: int) -> list[str]:
        """Return the names of the superclasses, nearest first."""
        found: list[str] = []
        while len(found) < _MOST_SUPERS and (klass := self._tables.word("Klass", "_super", klass) or 0):
            found.append(self.name(klass))
        return found

    def mirror(self, klass: int) -> int:
        """Return the address of the java.lang.Class object of a class, 0 if unknown."""
        return self._tables.oop("Klass", "_java_mirror", klass)

    def mirror_place(self, klass: int) -> int:
        """Return the address of the word that refers to the java.lang.Class object of a class; 0 if
        it is unknown. The word is a field of the class in JDK 8, and a handle in later versions."""
        place = self._tables.place("Klass", "_java_mirror", klass) or 0
        return place if self._tables.is_jdk8 else self._tables.memory.word(place) or 0

    def _name(self, klass: int) -> str:
        """Return the name of a class, "" if it cannot be read."""
        tables = self._tables
        symbol = tables.word("Klass", "_name", klass) if klass % 8 == 0 else None
        return java_name(read_symbol(tables, symbol or 0))

    def _maps(self, klass: int) -> Optional[array[int]]:
        """Return pairs of offset and number of references; None if they are damaged."""
        tables, word = self._tables, self._tables.memory.size
        count = tables.int32("InstanceKlass", "_nonstatic_oop_map_size", klass)
        table = tables.int32("Klass" if ("Klass", "_vtable_len") in tables.fields else "InstanceKlass", "_vtable_len", klass)
        itable = tables.int32("InstanceKlass", "_itable_len", klass)
        start = tables.sizes.get("InstanceKlass", 0)
        if count is None or table is None or itable is None or not start:
            return None
        if count > _MOST_MAPS or table > _MOST_TABLE or itable > _MOST_TABLE:
            return None
        data = tables.memory.read(klass + start + word * (table + itable), 8 * count) if count else b""
        form = tables.memory.arch.structure("I" * 2 * count)
        return array("I", form.unpack(data)) if len(data) == 8 * count else None


def class_of(tables: Tables, layout: ObjectLayout, address: int) -> int:
    """Return the Klass of the object at this address, 0 if it cannot be read."""
    header = layout.header
    place = address + header.klass_at
    word = tables.memory.int32(place) if header.klass_bytes == 4 else tables.memory.word(place)
    return layout.klass(word >> header.klass_shift) if word else 0
