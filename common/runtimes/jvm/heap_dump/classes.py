"""The classes of a heap dump: each has an object of java.lang.Class, its mirror."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from findleaks.allocators.bulk import read_records
from findleaks.engine.contract import Engine
from findleaks.engine.terms import NO_BLOCK
from findleaks.runtimes.jvm.engine import MIRROR
from findleaks.runtimes.jvm.heap_dump.fields import FieldReader, JavaField
from findleaks.runtimes.jvm.heap_dump.records import OBJECT, value_size
from findleaks.runtimes.jvm.objects import JavaObjects
from findleaks.runtimes.jvm.tables import Tables
from findleaks.target.interruptible import interruptible

_MOST_SUPERS = 1 << 10
_PRIMITIVES = 3  # the upper two bits of the layout helper of an array of numbers
_SOME = 1 << 14  # mirrors that are read together


class DumpClass(NamedTuple):
    """A class. `identifier`: the address of its mirror, or of its Klass if it has no mirror in the
    heap. `mirror`: the index of the mirror among the objects, or NO_BLOCK. `fields`: the fields
    that the class declares. `element`: the type of an array's elements, 0 if the class is not an
    array."""

    klass: int
    identifier: int
    mirror: int
    name: int
    fields: Sequence[JavaField]
    element: int


class DumpClasses:
    """The classes of a Java heap."""

    def __init__(self, tables: Tables, engine: Engine, objects: JavaObjects) -> None:
        self._tables, self._engine, self._objects = tables, engine, objects
        self.reader = FieldReader(tables)
        self.by_klass: dict[int, DumpClass] = {}
        self.other_mirrors: list[int] = []
        """Objects of java.lang.Class that stand for no class, by index. They stand for primitive
        types, or are garbage whose class was unloaded."""
        for index, klass in interruptible(tables.target, self._mirrors(), 1 << 10):
            if not self._add(klass, objects.blocks.address(index), index):
                self.other_mirrors.append(index)
        for one in objects.classes:
            if one.klass not in self.by_klass:
                self._add(one.klass, one.klass, NO_BLOCK)
        for klass in list(self.by_klass):
            for upper in self._supers(klass):  # its fields are those of instances, too
                if upper not in self.by_klass:
                    self._add(upper, objects.reader.mirror(upper) or upper, NO_BLOCK)

    def _mirrors(self) -> Iterator[tuple[int, int]]:
        """Yield the index of each mirror, with its class."""
        objects, offset = self._objects, self._tables.int32("java_lang_Class", "_klass_offset") or 0
        indices = objects.of_classes(number for number, one in enumerate(objects.classes) if one.kind == MIRROR)
        for first in range(0, len(indices), _SOME):
            some = indices[first : first + _SOME]
            starts = [start + offset for start in objects.blocks.columns_of(some).address]
            data, _ = read_records(self._tables.target, self._engine, starts, self._tables.memory.size)
            yield from zip(some, self._tables.memory.arch.unpack(bytes(data)))

    def _add(self, klass: int, identifier: int, index: int) -> bool:
        """Add a class. Returns False if there is no class at this address, or if it has another
        mirror."""
        tables = self._tables
        name = (tables.word("Klass", "_name", klass) or 0) if klass and klass % 8 == 0 else 0
        if not name or not self.reader.text(name) or (index != NO_BLOCK and self._objects.reader.mirror(klass) != identifier):
            return False
        helper = tables.int32("Klass", "_layout_helper", klass) or 0
        element = element_of(helper) if helper >> 31 else 0
        fields = self.reader.read(klass) if not element else []
        if sum(not field.is_static for field in fields) > helper & 0x7FFFFFFF:
            fields = []  # damaged: there is not a byte for each field
        self.by_klass[klass] = DumpClass(klass, identifier, index, name, fields, element)
        return True

    def _supers(self, klass: int) -> Iterator[int]:
        """Yield the superclasses, nearest first."""
        seen = {klass}
        while len(seen) < _MOST_SUPERS:
            klass = self._tables.word("Klass", "_super", klass) or 0
            if not klass or klass in seen:
                return
            seen.add(klass)
            yield klass

    def super_of(self, one: DumpClass) -> int:
        """Return the identifier of the superclass, or 0. The superclass of arrays is
        java.lang.Object."""
        above = list(self._supers(one.klass))
        upper = above[-1 if one.element else 0] if above else 0
        found = self.by_klass.get(upper)
        return found.identifier if found is not None else 0

    def instance_fields(self, klass: int) -> list[tuple[int, int]]:
        """Return offset and type of the fields of an instance, in the order of a heap dump: the
        fields of the class, then those of its superclasses."""
        return [
            (field.offset, field.kind)
            for one in (klass, *self._supers(klass))
            if one in self.by_klass
            for field in self.by_klass[one].fields
            if not field.is_static
        ]

    def instance_bytes(self, klass: int) -> int:
        """Return the bytes of the values of an instance."""
        return sum(value_size(kind) for _, kind in self.instance_fields(klass))

    def loader_of(self, klass: int) -> int:
        """Return the address of the class loader of a class, or 0."""
        data = self._tables.word("Klass", "_class_loader_data", klass)
        return self._tables.oop("ClassLoaderData", "_class_loader", data) if data else 0

    def resolved_references(self, klass: int) -> int:
        """Return the array with the constants that the class has resolved, or 0."""
        tables = self._tables
        pool = tables.word("InstanceKlass", "_constants", klass)
        if not pool:
            return 0
        cache = tables.word("ConstantPool", "_cache", pool)
        return tables.oop("ConstantPoolCache", "_resolved_references", cache or 0) or tables.oop(
            "ConstantPool", "_resolved_references", pool
        )

    def mirror_references(self) -> dict[int, bytes]:
        """Return the offsets of the references of an instance of java.lang.Class, with the names of
        the fields."""
        found = next((one for one in self._objects.classes if one.kind == MIRROR), None)
        if found is None or found.klass not in self.by_klass:
            return {}
        names = self.reader.added_to_class(found.klass)
        names.update((field.offset, self.reader.text(field.symbol)) for field in self.by_klass[found.klass].fields if not field.is_static)
        offsets = found.reference_offsets(self._objects.layout.references.size)
        return {offset: names.get(offset, b"reference at %d" % offset) for offset in offsets}


def element_of(helper: int) -> int:
    """Return the type of an array's elements, given the layout helper of its class (klass.hpp).
    Primitive types have the numbers of heap dumps."""
    kind = helper >> 8 & 0xFF
    return kind if helper >> 30 == _PRIMITIVES and 4 <= kind <= 11 else OBJECT
