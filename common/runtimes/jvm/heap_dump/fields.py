"""Read the fields of Java classes: names, types and offsets of static and instance variables.

Up to JDK 20, a class has six numbers of 16 bits for each field (InstanceKlass::_fields). Since 21,
it has a stream of compressed numbers (InstanceKlass::_fieldinfo_stream). Names and signatures are
numbers of entries in the class's constant pool. The fields that the JVM adds to a class follow
those of the program.

Sources: OpenJDK 8, 11 and 17, src/hotspot/share/oops/fieldInfo.hpp and fieldStreams.hpp; 21 and 25,
oops/fieldInfo.hpp and fieldInfo.inline.hpp, utilities/unsigned5.hpp."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from findleaks.runtimes.jvm.heap_dump.records import TYPES
from findleaks.runtimes.jvm.tables import Tables

_STATIC, _ADDED = 0x0008, 0x0400  # JVM_ACC_STATIC, JVM_ACC_FIELD_INTERNAL
_SLOTS, _FLAGS, _NAME, _SIGNATURE, _LOW, _HIGH = 6, 0, 1, 2, 4, 5
_SYMBOLS = "_ZN9vmSymbols8_symbolsE"  # the JVM's symbols, which the tables of JDK 8 and 11 lack
_ADDED_BY_8 = (b"klass", b"array_klass", b"oop_size", b"static_oop_field_count", b"protection_domain", b"init_lock", b"signers")
"""The fields that JDK 8 adds to java.lang.Class (javaClasses.hpp), in this order."""
_TAG_BITS = 2  # low bits of a packed offset
_MOST_FIELDS, _MOST_POOL, _MOST_STREAM = 1 << 16, 1 << 16, 1 << 20
# Numbers of a stream have one to five bytes; see unsigned5.hpp.
_BITS, _LOW_CODES, _EXCESS, _MOST_BYTES = 6, 191, 1, 5
_INITIALIZED, _GENERIC, _CONTENDED = 1, 4, 16  # flags of fields that add a number


class JavaField(NamedTuple):
    """A field. `symbol`: the address of the Symbol with its name. `kind`: its type (records.TYPES).
    `offset`: the offset in an instance; for a static field, the offset in the mirror of the
    class."""

    symbol: int
    kind: int
    offset: int
    is_static: bool


class _Raw(NamedTuple):
    """A field. `is_added`: whether the JVM added it. If so, `name` is the number of a symbol of the
    JVM."""

    flags: int
    name: int
    signature: int
    offset: int
    is_added: bool


class FieldReader:
    """Reads fields and symbols."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._texts: dict[int, bytes] = {}

    def text(self, symbol: int) -> bytes:
        """Return the text of a Symbol, in modified UTF-8; b"" if it cannot be read."""
        known = self._texts.get(symbol)
        if known is None:
            known = self._texts[symbol] = self._text(symbol)
        return known

    def _text(self, symbol: int) -> bytes:
        memory = self._tables.memory
        place, body = self._tables.place("Symbol", "_length", symbol), self._tables.place("Symbol", "_body", symbol)
        length = int.from_bytes(memory.read(place, 2), memory.arch.byteorder) if place else 0
        return memory.read(body, length) if length and body else b""

    def read(self, klass: int) -> list[JavaField]:
        """Return the fields that a class declares; [] if they cannot be read."""
        tables = self._tables
        raw = [one for one in self._raw(klass) if not one.is_added]
        pool = tables.word("InstanceKlass", "_constants", klass) if raw else 0
        count = tables.int32("ConstantPool", "_length", pool or 0) if pool else 0
        size = tables.sizes.get("ConstantPool", 0)
        if not pool or not size or not count or count > _MOST_POOL:
            return []
        entries = tables.memory.words(pool + size, count) or ()
        found = []
        for one in raw:
            if not (0 < one.name < len(entries) and 0 < one.signature < len(entries)):
                continue
            kind = TYPES.get(self.text(entries[one.signature])[:1].decode("latin-1"))
            if kind is not None and self.text(entries[one.name]):
                found.append(JavaField(entries[one.name], kind, one.offset, bool(one.flags & _STATIC)))
        return found

    def added_to_class(self, klass: int) -> dict[int, bytes]:
        """Return the names of the fields that the JVM adds to java.lang.Class, by offset; {} if the
        JVM's symbols are not found."""
        symbols = self._tables.place("Symbol", "_vm_symbols[0]") or self._tables.symbol(_SYMBOLS)
        added = [one for one in self._raw(klass) if one.is_added]
        if not symbols and self._tables.is_jdk8:
            return {one.offset: name for one, name in zip(added, _ADDED_BY_8)}
        found: dict[int, bytes] = {}
        for one in added if symbols else ():
            symbol = self._tables.memory.word(symbols + one.name * self._tables.memory.size)
            if symbol and self.text(symbol):
                found[one.offset] = self.text(symbol)
        return found

    def _raw(self, klass: int) -> Iterator[_Raw]:
        stream = self._tables.word("InstanceKlass", "_fieldinfo_stream", klass)
        return self._stream(stream) if stream else self._array(klass)

    def _array(self, klass: int) -> Iterator[_Raw]:
        """Yield the fields of JDK 8 to 20."""
        tables = self._tables
        array = tables.word("InstanceKlass", "_fields", klass)
        count = (tables.int32("InstanceKlass", "_java_fields_count", klass) or 0) & 0xFFFF
        length, data = self._bytes(array or 0, "u2", 2)
        numbers = [int.from_bytes(data[at : at + 2], tables.memory.arch.byteorder) for at in range(0, len(data) - 1, 2)]
        for field in range(length // _SLOTS):
            at = field * _SLOTS
            packed = numbers[at + _HIGH] << 16 | numbers[at + _LOW]
            is_added = field >= count
            if is_added and numbers[at + _FLAGS] != _ADDED:
                return  # signatures of generic types follow the fields
            yield _Raw(numbers[at + _FLAGS], numbers[at + _NAME], numbers[at + _SIGNATURE], packed >> _TAG_BITS, is_added)

    def _stream(self, array: int) -> Iterator[_Raw]:
        """Yield the fields of JDK 21 and later."""
        numbers = _numbers(self._bytes(array, "u1", 1)[1])
        count, added = next(numbers, 0), next(numbers, None)
        if added is None or max(count, added) > _MOST_FIELDS:
            return
        for field in range(count + added):
            values = [next(numbers, None) for _ in range(5)]
            if None in values:
                return
            name, signature, offset, flags, more = (value or 0 for value in values)
            for bit in (_INITIALIZED, _GENERIC, _CONTENDED):
                if more & bit:
                    next(numbers, None)
            yield _Raw(flags, name, signature, offset, field >= count)

    def _bytes(self, array: int, element: str, size: int) -> tuple[int, bytes]:
        """Return the length of an Array<u1> or Array<u2> of the JVM, and the bytes of its
        elements."""
        tables = self._tables
        length = tables.int32("Array<int>", "_length", array) if array else None
        place = tables.place(f"Array<{element}>", "_data", array)
        if not length or not place or length * size > _MOST_STREAM:
            return 0, b""
        data = tables.memory.read(place, length * size)
        return (length, data) if data else (0, b"")


def _numbers(data: bytes) -> Iterator[int]:
    """Yield the numbers of a stream. A byte below 192 is the last one of a number."""
    value = shift = 0
    for one in data:
        if one < _EXCESS:
            return
        value += (one - _EXCESS) << shift
        shift += _BITS
        if one < _EXCESS + _LOW_CODES or shift == _BITS * _MOST_BYTES:
            yield value
            value = shift = 0
