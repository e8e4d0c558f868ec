"""Write the Java heap as a heap dump.

All objects are written in the order of their addresses, including garbage. The identifier of an
object is its address, and the identifier of a text is the address of a Symbol. In addition to the
index of objects (objects.py), this takes about 30 MiB of memory, and the memory for the classes.

As in the JVM's own dumps, the instance of java.lang.Class of a class becomes the record of that
class. This record has no place for the references of the instance. They become static fields in
angle brackets. Otherwise, objects that only a Class refers to would be unreachable in the dump."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO

from findleaks.engine.contract import Engine
from findleaks.engine.terms import NO_BLOCK
from findleaks.formatting import format_count, size
from findleaks.runtimes.jvm.engine import ARRAY, FIXED, MIRROR, OBJECTS, ObjectWalk
from findleaks.runtimes.jvm.heap_dump.classes import DumpClass, DumpClasses
from findleaks.runtimes.jvm.heap_dump.format import HprofFile
from findleaks.runtimes.jvm.heap_dump.records import (
    INSTANCE_DUMP,
    OBJECT,
    OBJECT_ARRAY_DUMP,
    PRIMITIVE_ARRAY_DUMP,
    TRACE,
    RecordEncoder,
    Written,
    value_size,
)
from findleaks.runtimes.jvm.heap_dump.roots import DumpRoots
from findleaks.runtimes.jvm.native_roots import NativeRoots
from findleaks.runtimes.jvm.objects import JavaObjects
from findleaks.runtimes.jvm.tables import Tables
from findleaks.target.base import Piece
from findleaks.target.interruptible import interruptible

ROOM = 4 << 20  # bytes of a segment with objects
_CHUNK = 1 << 20  # bytes of a large array that are read together
_MOST_RECORD = 0xFFFFFFFF  # bytes of a segment
_RESOLVED = b"<resolved_references>"
# One field has the type of the elements of an array, or the lock of another class.
_LOCK, _COMPONENT = b"<init_lock>", b"<componentType>"
_SIGNERS, _DOMAIN = (b"signers", b"signers_name"), (b"protectionDomain", b"protection_domain")
"""Names, in different versions, of those references of a Class for which its record has a place."""
_FIRST_TEXT = 1  # identifiers of texts that are no Symbols; a Symbol has a higher address


class HeapDumpWriter:
    """Writes one heap dump. `is_live`: returns whether the object with this index may be live.
    `report` is called with the fraction that is written, from 0 to 1."""

    def __init__(
        self,
        tables: Tables,
        engine: Engine,
        objects: JavaObjects,
        native: NativeRoots,
        is_live: Callable[[int], bool],
        report: Callable[[float], None],
    ) -> None:
        self._tables, self._engine, self._objects, self._report = tables, engine, objects, report
        self.classes = DumpClasses(tables, engine, objects)
        self._roots = DumpRoots(tables, objects, self.classes, native, is_live)
        self._texts = {text: number for number, text in enumerate((_RESOLVED, _LOCK, _COMPONENT), _FIRST_TEXT)}
        references = self.classes.mirror_references()
        self._places = [next((offset for offset, name in references.items() if name in names), None) for names in (_SIGNERS, _DOMAIN)]
        self._further = [(offset, self._text(name)) for offset, name in references.items() if offset not in self._places]
        walk = ObjectWalk(objects.layout.header, objects.layout.references, objects.table)
        self._encoder = RecordEncoder(walk, objects.blocks, objects.numbers, ROOM)
        for one in objects.classes:
            self._add_class(one.klass, one.kind, one.row[2])
        self.missing = 0
        """Number of bytes of objects that cannot be read. They are zeros in the dump."""
        self.shortened = 0
        """Number of arrays that are too large for a record. They are shortened in the dump."""

    def notes(self) -> list[str]:
        """Return sentences on the content of the dump that was written."""
        found = [f"{len(self._objects.blocks):,} objects, garbage included, and {len(self.classes.by_klass):,} classes"]
        if self.missing:
            found.append(f"{size(self.missing)} of objects cannot be read, and are zeros")
        if self.shortened:
            found.append(f"{format_count(self.shortened, 'array')} of more than 4 GiB end early")
        return found

    def _text(self, name: bytes) -> int:
        """Return the identifier of the name of a field of java.lang.Class, in angle brackets."""
        return self._texts.setdefault(b"<" + name.strip(b"<>") + b">", _FIRST_TEXT + len(self._texts))

    def _add_class(self, klass: int, kind: int, shift: int) -> None:
        found = self.classes.by_klass.get(klass)
        if found is None or (kind in (ARRAY, OBJECTS) and element_size(self._encoder, found.element) != 1 << shift):
            self._encoder.add_class(0, 0, ())
        else:
            self._encoder.add_class(found.identifier, found.element, self.classes.instance_fields(klass))

    def write(self, out: BinaryIO) -> None:
        """Write the dump. Raises Interrupted, and OSError if the file cannot be written."""
        file = HprofFile(out, int((self._tables.target.taken_at or 0) * 1000))
        classes = list(self.classes.by_klass.values())
        for text, identifier in self._texts.items():
            file.string(identifier, text)
        symbols = {one.name for one in classes} | {field.symbol for one in classes for field in one.fields}
        for symbol in sorted(symbols):
            file.string(symbol, self.classes.reader.text(symbol))
        for number, one in enumerate(classes, 1):
            file.load_class(number, one.identifier, one.name)
        file.trace(TRACE, 0)
        for thread in self._roots.threads:
            file.trace(TRACE + thread.number, thread.number)
        for one in interruptible(self._tables.target, classes, 1 << 8):
            self._write_class(file, one)
        for index in self.classes.other_mirrors:
            self._write_instance(file, index)
        self._write_objects(file)
        self._roots.write(file)
        file.end()

    def _write_class(self, file: HprofFile, one: DumpClass) -> None:
        data = self._object(one.mirror) if one.mirror != NO_BLOCK else b""
        fields = [(field.symbol, field.kind) for field in one.fields if not field.is_static]
        places = [int.from_bytes(self._value(data, offset, OBJECT), "big") if offset else 0 for offset in self._places]
        others = self.classes.super_of(one), self.classes.loader_of(one.klass), *places
        file.class_dump(one.identifier, others, self.classes.instance_bytes(one.klass), self._statics(one, data), fields)

    def _statics(self, one: DumpClass, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield the identifier of the name, the type, and the value of each static field, and of
        each reference in the class's mirror (its java.lang.Class object)."""
        for field in one.fields:
            if field.is_static:
                yield field.symbol, field.kind, self._value(data, field.offset, field.kind)
        for offset, text in self._further:
            value = self._value(data, offset, OBJECT)
            if any(value):
                yield self._texts[_LOCK] if text == self._texts[_COMPONENT] and not one.element else text, OBJECT, value
        resolved = self.classes.resolved_references(one.klass)
        if resolved:
            yield self._texts[_RESOLVED], OBJECT, struct.pack(">Q", resolved)

    def _object(self, index: int) -> bytes:
        """Return the memory of an object. Bytes that cannot be read are zeros."""
        return self._memory(self._objects.blocks.address(index), self._objects.blocks.size(index))

    def _memory(self, start: int, count: int) -> bytes:
        data = self._tables.memory.read(start, count)
        if len(data) == count:
            return data
        found, present = bytearray(count), 0
        for piece in self._tables.target.pieces(start, start + count):
            found[piece.address - start : piece.address - start + len(piece.data)] = piece.data
            present += len(piece.data)
        self.missing += count - present
        return bytes(found)

    def _value(self, data: bytes, offset: int, kind: int) -> bytes:
        """Return a value of an object as in a heap dump; zeros if it is beyond the object's end."""
        value = data[offset : offset + element_size(self._encoder, kind)]
        return self._encoder.encode_values(self._engine, value, kind) or bytes(value_size(kind))

    def _write_instance(self, file: HprofFile, index: int) -> None:
        """Write an object of java.lang.Class as an instance."""
        klass = self._objects.classes[self._objects.numbers[index]].klass
        found = self.classes.by_klass.get(klass)
        if found is None:
            return
        data = self._object(index)
        values = b"".join(self._value(data, offset, kind) for offset, kind in self.classes.instance_fields(klass))
        start = self._objects.blocks.address(index)
        file.add(struct.pack(">BQIQI", INSTANCE_DUMP, start, TRACE, found.identifier, len(values)) + values)

    def _write_objects(self, file: HprofFile) -> None:
        """Write all other objects."""
        file.flush()
        encoder, count = self._encoder, len(self._objects.blocks)
        for piece in self._objects.pieces():
            self._report(encoder.next / max(count, 1))
            while encoder.next < count and self._objects.blocks.address(encoder.next) < piece.address + len(piece.data):
                if self._encode(file, piece) == Written.PARTLY_PRESENT:
                    self._write_large(file)
        while encoder.next < count:  # objects in memory that is missing
            self._report(encoder.next / count)
            self._write_large(file)

    def _encode(self, file: HprofFile, piece: Piece) -> Written:
        encoder = self._encoder
        result = encoder.run(self._engine, piece)
        if encoder.length:
            file.segment(memoryview(encoder.buffer)[: encoder.length])
        elif result == Written.NO_ROOM:
            return Written.PARTLY_PRESENT
        return result

    def _write_large(self, file: HprofFile) -> None:
        """Write the next object, which is partly missing or is larger than a segment."""
        encoder, index = self._encoder, self._encoder.next
        number = self._objects.numbers[index]
        one = self._objects.classes[number]
        if not encoder.ids[number] or one.kind == MIRROR:
            encoder.next += 1
        elif one.kind == FIXED:
            start = self._objects.blocks.address(index)
            self._encode(file, Piece(start, memoryview(bytearray(self._object(index)))))
            encoder.next = index + 1
        else:
            self._write_array(file, index, number)
            encoder.next = index + 1

    def _write_array(self, file: HprofFile, index: int, number: int) -> None:
        """Write an array piece by piece."""
        encoder, one = self._encoder, self._objects.classes[number]
        element = encoder.elements[number]
        width, each = element_size(encoder, element), value_size(element)
        start, end = self._objects.blocks.address(index), self._objects.blocks.address(index) + self._objects.blocks.size(index)
        length = self._tables.memory.int32(start + self._objects.layout.header.length_at) or 0
        length = min(length, max(end - start - one.size, 0) // width)
        identifier = struct.pack(">Q", encoder.ids[number]) if one.kind == OBJECTS else bytes([element])
        tag = OBJECT_ARRAY_DUMP if one.kind == OBJECTS else PRIMITIVE_ARRAY_DUMP
        most = (_MOST_RECORD - 17 - len(identifier)) // each
        self.shortened += length > most
        length = min(length, most)
        head = struct.pack(">BQII", tag, start, TRACE, length) + identifier
        file.start_segment(len(head) + length * each)
        file.write(head)
        first, last = start + one.size, start + one.size + length * width
        for at in interruptible(self._tables.target, range(first, last, _CHUNK)):
            file.write(encoder.encode_values(self._engine, self._memory(at, min(_CHUNK, last - at)), element))


def element_size(encoder: RecordEncoder, kind: int) -> int:
    """Return the bytes of a value of this type in memory."""
    return encoder.walk.references.size if kind == OBJECT else value_size(kind)
