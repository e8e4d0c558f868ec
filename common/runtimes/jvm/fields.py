"""Read the fields of Java classes: names, types and offsets.

Sources: OpenJDK 17, src/hotspot/share/oops/fieldInfo.hpp (an array of six 16-bit numbers for each
field); OpenJDK 21 and 25, the same file and utilities/unsigned5.hpp. There, the fields are a stream
of numbers: the number of fields, the number of injected fields, then for each field its name,
signature, offset, access flags and flags, and one more number for each of the flags 1, 4 and 16.
Names and signatures are entries of the class's constant pool. The entries follow a ConstantPool in
memory. The JVM injects fields into some classes. Java does not declare these fields, and their
names are entries of the JVM's own array of symbols."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Literal, Optional

from findleaks.runtimes.jvm.constant_pool import read_symbol, read_text
from findleaks.runtimes.jvm.tables import Tables
from findleaks.value_classes import NamedTuple

SIZES = {"Z": 1, "B": 1, "C": 2, "S": 2, "I": 4, "F": 4, "J": 8, "D": 8}
"""Bytes of a field by its signature; other signatures are those of references."""

_CACHED = 1 << 14
_STATIC, _ACC_BITS = 8, 16  # JVM_ACC_STATIC
_SLOTS = 6  # numbers of a field in JDK 17
_OPTIONAL, _INJECTED = (1, 4, 16), 2  # flags of JDK 21: with a further number; of an injected field
_MOST_FIELDS = 1 << 16
_MOST_BYTES = 1 << 20  # of a stream of fields
_MOST_SUPERS = 1 << 10
_HIGH, _LOW_BITS = 192, 6  # UNSIGNED5: a byte of 192 or more is not the last one of a number


class JavaField(NamedTuple):
    """A field. `offset` is in bytes: in an instance, or in the mirror of the class if it is
    static."""

    name: str
    signature: str
    offset: int
    is_static: bool

    @property
    def is_reference(self) -> bool:
        return self.signature[:1] in ("L", "[")


class FieldReader:
    """Reads the fields of the class at the address of a Klass."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._order: Literal["little", "big"] = "little" if tables.memory.arch.byteorder == "little" else "big"
        self._own = lru_cache(_CACHED)(self._read)
        self.instance = lru_cache(_CACHED)(self._instance)

    def statics(self, klass: int) -> Sequence[JavaField]:
        """Return the static fields of a class, by offset."""
        return [one for one in self._own(klass) if one.is_static]

    def read_injected(self, klass: int) -> Mapping[str, int]:
        """Return the offsets of the fields that the JVM injected into a class, by name (since JDK
        21)."""
        array = self._tables.fields.get(("Symbol", "_vm_symbols[0]"))
        if array is None or not klass:
            return {}
        size = self._tables.memory.size
        found = ((name, offset) for name, _, offset, _, flags in self._read_stream(klass, True) if flags & _INJECTED)
        symbols = ((self._tables.memory.word(array.address + name * size) or 0, offset) for name, offset in found)
        return {read_symbol(self._tables, symbol): offset for symbol, offset in symbols}

    def _instance(self, klass: int) -> Sequence[JavaField]:
        """Return the fields of an instance, those of superclasses included, by offset."""
        found: list[JavaField] = []
        for _ in range(_MOST_SUPERS):
            if not klass:
                break
            found += [one for one in self._own(klass) if not one.is_static]
            klass = self._tables.word("Klass", "_super", klass) or 0
        return sorted(found, key=lambda one: one.offset)

    def _read(self, klass: int) -> Sequence[JavaField]:
        pool = self._tables.word("InstanceKlass", "_constants", klass) or 0
        made = []
        for name, signature, offset, is_static in self._records(klass):
            texts = read_text(self._tables, pool, name), read_text(self._tables, pool, signature)
            if all(texts) and (texts[1] in SIZES or texts[1][0] in "L["):
                made.append(JavaField(*texts, offset, is_static))
        return sorted(made, key=lambda one: one.offset)

    def _records(self, klass: int) -> Iterator[tuple[int, int, int, bool]]:
        """Yield for each field: the index of its name, the index of its signature, its offset, and
        whether it is static."""
        old = self._array(klass, "_fields", 2)
        if old is not None:
            count = self._tables.int32("InstanceKlass", "_java_fields_count", klass) or 0
            slots = [int.from_bytes(old[at : at + 2], self._order) for at in range(0, len(old) - 1, 2)]
            for at in range(0, min(count & 0xFFFF, len(slots) // _SLOTS) * _SLOTS, _SLOTS):
                access, name, signature, _, low, high = slots[at : at + _SLOTS]
                yield name, signature, (high << _ACC_BITS | low) >> 2, bool(access & _STATIC)
            return
        for name, signature, offset, access, _ in self._read_stream(klass, False):
            yield name, signature, offset, bool(access & _STATIC)

    def _read_stream(self, klass: int, with_injected: bool) -> Iterator[tuple[int, ...]]:
        """Yield name, signature, offset, access flags and flags of each field. Injected fields
        follow those that Java declares."""
        numbers = decode_unsigned5(self._array(klass, "_fieldinfo_stream", 1) or b"")
        declared, injected = next(numbers, 0), next(numbers, 0)
        for _ in range(min(declared + (injected if with_injected else 0), _MOST_FIELDS)):
            one = tuple(islice(numbers, 5))
            if len(one) < 5:
                return
            for flag in _OPTIONAL:
                if one[4] & flag:
                    next(numbers, 0)
            yield one

    def _array(self, klass: int, field: str, size: int) -> Optional[bytes]:
        """Return the elements of an Array<u1> or Array<u2> that belongs to a class; None if the
        class has no such field."""
        tables = self._tables
        if ("InstanceKlass", field) not in tables.fields:
            return None
        address = tables.word("InstanceKlass", field, klass) or 0
        length = tables.int32("Array<int>", "_length", address)
        place = tables.place(f"Array<u{size}>", "_data", address)
        if not length or not place or length * size > _MOST_BYTES:
            return b""
        return tables.memory.read(place, length * size)


def decode_unsigned5(data: bytes) -> Iterator[int]:
    """Yield the numbers of a stream. Each byte is at least 1. A number has at most five bytes, the
    lowest first. Each byte counts 64 times as much as the preceding one."""
    value = shift = 0
    for byte in data:
        if not byte:
            return
        value += byte - 1 << shift
        shift += _LOW_BITS
        if byte < _HIGH or shift == 5 * _LOW_BITS:
            yield value & 0xFFFFFFFF
            value = shift = 0
