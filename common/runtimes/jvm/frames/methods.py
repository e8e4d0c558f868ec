"""Read Java methods: class, name, source file, and the line of a bytecode.

Sources: OpenJDK 8 to 25, src/hotspot/share/oops: method.hpp, constMethod.hpp (the bytecodes follow
a ConstMethod, and the compressed table of lines follows the bytecodes), code/compressedStream.hpp
(pairs of differences; numbers of JDK 8 to 17), utilities/unsigned5.hpp (numbers of 21 and 25)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Optional

from findleaks.runtimes.jvm.constant_pool import is_text, read_text
from findleaks.runtimes.jvm.java_classes import ClassReader
from findleaks.runtimes.jvm.tables import Tables
from findleaks.value_classes import NamedTuple

_CACHED = 1 << 14
_CHANGING_BITS = 16  # low bits of a class's number that change
_NATIVE = 0x100  # JVM_ACC_NATIVE
_HIGH, _BITS = 192, 6  # a byte of 192 or more is not the last one of a number
_MOST_DIGITS = 5  # bytes of a number
_ESCAPE = 0xFF  # byte of a table of lines: two signed numbers follow
_SHIFT, _MASK = 3, 7  # other bytes have the difference of the bytecodes, and of the lines
_FLAG = ("ConstMethod::_has_linenumber_table", "ConstMethodFlags::_misc_has_linenumber_table")


class JavaMethod(NamedTuple):
    """A method. `name` includes the class. `file`: the base name of the source file, or "". The
    bytecodes are at [`start`, `end`). `lines`: the address of the table of lines, 0 if there is
    none, and its size in bytes. `stack_bytes`: the most that the method pushes."""

    name: str
    file: str
    start: int
    end: int
    lines: int
    size: int
    is_native: bool
    stack_bytes: int


class Numbers:
    """Decodes the compressed numbers of a JVM. `lowest`: the least value of a byte. It is 1 since
    JDK 20, and 0 before."""

    def __init__(self, lowest: int) -> None:
        self._lowest = lowest

    def decode(self, data: bytes, at: int) -> tuple[int, int]:
        """Return the number at this position, and the position after it. Raises IndexError if
        `data` ends before, ValueError if the number is invalid."""
        value = 0
        for digit in range(_MOST_DIGITS):
            byte = data[at + digit]
            if byte < self._lowest:
                raise ValueError
            value += byte - self._lowest << _BITS * digit
            if byte < _HIGH or digit == _MOST_DIGITS - 1:
                return value & 0xFFFFFFFF, at + digit + 1
        raise ValueError

    def decode_signed(self, data: bytes, at: int) -> tuple[int, int]:
        """Return a signed number: its lowest bit is the sign."""
        value, at = self.decode(data, at)
        return (value >> 1) ^ -(value & 1), at


class MethodReader:
    """Reads methods by the address of a Method."""

    def __init__(self, tables: Tables, numbers: Numbers) -> None:
        self._tables, self._numbers = tables, numbers
        self._classes = ClassReader(tables)
        self.read = lru_cache(_CACHED)(self._read)
        self._pairs = lru_cache(_CACHED)(self._read_pairs)
        self._number = _place_number(tables)
        self._flag = next((tables.constants[name] for name in _FLAG if name in tables.constants), 0)

    def loaded_class(self, address: int) -> int:
        """Return a number that differs between two loads of a method's class, even if both are at
        the same address; 0 if there is none. It is the number that JFR gives to a Klass, without
        the bits that change (the lower 16, jfrTraceIdMacros.hpp). The other words at the end of a
        Klass change when a lock is revoked, and in JDK 8 at each collection."""
        tables = self._tables
        const = tables.word("Method", "_constMethod", address) or 0
        klass = tables.word("ConstantPool", "_pool_holder", tables.word("ConstMethod", "_constants", const) or 0) or 0
        number = tables.memory.word(klass + self._number) if klass and self._number else None
        return number >> _CHANGING_BITS if number is not None else 0

    def line(self, method: JavaMethod, bytecode: int) -> int:
        """Return the line of the bytecode with this index, 0 if it is unknown."""
        best = 0
        for start, line in self._pairs(method):
            if start > bytecode:
                break
            best = line
        return best

    def _half(self, kind: str, field: str, of: int) -> Optional[int]:
        place = self._tables.place(kind, field, of)
        data = self._tables.memory.read(place, 2) if place else b""
        return int.from_bytes(data, self._tables.memory.arch.byteorder) if data else None

    def _read(self, address: int) -> Optional[JavaMethod]:
        """Return the method; None if there is none at this address. Its parts refer to each other
        by tagged entries of a constant pool, which belongs to a class."""
        tables = self._tables
        const = tables.word("Method", "_constMethod", address) or 0 if address % tables.memory.size == 0 else 0
        pool = tables.word("ConstMethod", "_constants", const) or 0 if const and const % tables.memory.size == 0 else 0
        name, signature = (self._half("ConstMethod", field, const) or 0 for field in ("_name_index", "_signature_index"))
        if not pool or pool % tables.memory.size or not all(is_text(tables, pool, one) for one in (name, signature)):
            return None
        holder = self._classes.name(tables.word("ConstantPool", "_pool_holder", pool) or 0)
        text = read_text(tables, pool, name)
        code = self._half("ConstMethod", "_code_size", const)
        words = tables.int32("ConstMethod", "_constMethod_size", const)
        start = const + tables.sizes.get("ConstMethod", 0)
        if not holder or not text or not read_text(tables, pool, signature).startswith("(") or code is None or words is None:
            return None
        end = start + code
        left = const + words * tables.memory.size - end
        flags = self._half("ConstMethod", "_flags", const) or self._half("ConstMethod", "_flags._flags", const) or 0
        access = tables.int32("Method", "_access_flags", address)
        stack = self._half("ConstMethod", "_max_stack", const)
        if start == const or left < 0 or access is None or stack is None:
            return None
        lines = (end, left) if flags & self._flag else (0, 0)
        return JavaMethod(f"{holder}.{text}", self._file(pool), start, end, *lines, bool(access & _NATIVE), 8 * stack)

    def _file(self, pool: int) -> str:
        """Return the base name of the source file of a constant pool's class."""
        holder = self._tables.word("ConstantPool", "_pool_holder", pool) or 0
        index = self._half("ConstantPool", "_source_file_name_index", pool) or self._half(
            "InstanceKlass", "_source_file_name_index", holder
        )
        return read_text(self._tables, pool, index) if index and is_text(self._tables, pool, index) else ""

    def _read_pairs(self, method: JavaMethod) -> tuple[tuple[int, int], ...]:
        data = self._tables.memory.read(method.lines, method.size) if method.lines and method.size else b""
        return tuple(sorted(self._decode_pairs(data)))

    def _decode_pairs(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield the index of a bytecode, and the line at which its code begins."""
        at = bytecode = line = 0
        try:
            while data[at]:
                if data[at] == _ESCAPE:
                    first, at = self._numbers.decode_signed(data, at + 1)
                    second, at = self._numbers.decode_signed(data, at)
                else:
                    first, second, at = data[at] >> _SHIFT, data[at] & _MASK, at + 1
                bytecode, line = bytecode + first, line + second
                yield bytecode, line
        except (IndexError, ValueError):
            return


def _place_number(tables: Tables) -> int:
    """Return the offset of `_trace_id` in a Klass (klass.hpp); 0 if it is unknown. The tables do
    not contain this offset. JDK 8: after the count of revoked locks, which follows the header for
    new objects. JDK 11 to 24: after the access flags. JDK 25: at the end."""
    size = tables.sizes.get("Klass", 0)
    places = [tables.fields.get(("Klass", name)) for name in ("_class_loader_data", "_access_flags", "_prototype_header")]
    loader, flags, header = (one.offset if one is not None else 0 for one in places)
    if tables.is_jdk8:
        place = header + 16 if header else 0
    else:
        place = flags + 4 + 7 & -8 if flags > loader else size - 8
    return place if 0 < place <= size - 8 else 0
