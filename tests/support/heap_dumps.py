"""Read heap dumps (HPROF 1.0.2) that findleaks or a JVM wrote."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

TYPES = {2: "Q", 4: "B", 5: "H", 6: "f", 7: "d", 8: "b", 9: "h", 10: "i", 11: "q"}
"""Formats of values for `struct`, by type."""
ROOTS = {0xFF: "", 0x01: "Q", 0x02: "II", 0x03: "II", 0x04: "I", 0x05: "", 0x06: "I", 0x07: "", 0x08: "II"}
"""Formats of the data after a root's identifier, by tag."""
UNKNOWN, JNI_GLOBAL, JNI_LOCAL, JAVA_FRAME, STICKY_CLASS, MONITOR, THREAD = 0xFF, 0x01, 0x02, 0x03, 0x05, 0x07, 0x08
OBJECT = 2


class JavaClass(NamedTuple):
    """A class. `fields`: name and type of the fields that it declares; `statics`: name and value."""

    name: str
    super_class: int
    loader: int
    domain: int
    size: int
    fields: tuple[tuple[str, int], ...]
    statics: Mapping[str, object]


@dataclass
class Dump:
    """The records of a heap dump. Objects are by identifier. An instance is its class and the bytes of its values. An array is its class,
    or the type of its elements, and the bytes of the elements."""

    texts: dict[int, str] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    classes: dict[int, JavaClass] = field(default_factory=dict)
    instances: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    arrays: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    numbers: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    roots: list[tuple[int, int]] = field(default_factory=list)
    ended: bool = False

    def by_class(self) -> Counter[str]:
        """Return the number of objects by the name of their class ("[I", "java.lang.String"). Class objects count as java.lang.Class."""
        found = Counter(self.names[one] for one, _ in (*self.instances.values(), *self.arrays.values()))
        found.update("[" + "ZCFDBSIJ"[kind - 4] for kind, _ in self.numbers.values())
        found["java.lang.Class"] += len(self.classes)
        return found

    def values(self, identifier: int) -> dict[str, object]:
        """Return the values of an instance by "class.field"."""
        class_id, data = self.instances[identifier]
        found, at = {}, 0
        while class_id:
            one = self.classes[class_id]
            for name, kind in one.fields:
                (found[f"{one.name}.{name}"],) = struct.unpack_from(">" + TYPES[kind], data, at)
                at += struct.calcsize(">" + TYPES[kind])
            class_id = one.super_class
        assert at == len(data)
        return found

    def elements(self, identifier: int) -> tuple[int, ...]:
        """Return the elements of an array."""
        kind, data = self.numbers[identifier] if identifier in self.numbers else (OBJECT, self.arrays[identifier][1])
        size = struct.calcsize(">" + TYPES[kind])
        return struct.unpack(f">{len(data) // size}{TYPES[kind]}", data)

    def of_class(self, name: str) -> list[int]:
        """Return the identifiers of the instances of a class."""
        return [identifier for identifier, (one, _) in self.instances.items() if self.names[one] == name]

    def reachable(self) -> set[int]:
        """Return all objects that are reachable from the roots."""
        found, waiting = set[int](), [one for _, one in self.roots]
        while waiting:
            one = waiting.pop()
            if one and one not in found:
                found.add(one)
                waiting += self.references(one)
        return found

    def references(self, identifier: int) -> list[int]:
        """Return the objects to which an object or a class refers, including weak references."""
        if identifier in self.arrays:
            return [self.arrays[identifier][0], *self.elements(identifier)]
        if identifier in self.classes:
            one = self.classes[identifier]
            return [one.super_class, one.loader, *(value for value in one.statics.values() if isinstance(value, int) and value > 1)]
        if identifier not in self.instances:
            return []
        class_id, kinds = self.instances[identifier][0], list[int]()
        upper = class_id
        while upper:
            kinds += [kind for _, kind in self.classes[upper].fields]
            upper = self.classes[upper].super_class
        values = struct.unpack(">" + "".join(TYPES[kind] for kind in kinds), self.instances[identifier][1])
        return [class_id, *(value for kind, value in zip(kinds, values) if kind == OBJECT)]

    def class_named(self, name: str) -> JavaClass:
        return next(one for one in self.classes.values() if one.name == name)


def read(file: Path) -> Dump:
    """Read a heap dump. Check that all records are complete, and that they refer to existing texts and classes."""
    data, found = file.read_bytes(), Dump()
    assert data.startswith(b"JAVA PROFILE 1.0.2\0")
    (size,) = struct.unpack_from(">I", data, 19)
    assert size == 8
    at = 31
    while at < len(data):
        tag, _, length = struct.unpack_from(">BII", data, at)
        body = memoryview(data)[at + 9 : at + 9 + length]
        assert len(body) == length and not found.ended
        at += 9 + length
        if tag == 0x01:
            found.texts[struct.unpack_from(">Q", body)[0]] = bytes(body[8:]).decode("utf-8", "replace")
        elif tag == 0x02:
            _, identifier, _, name = struct.unpack(">IQIQ", body)
            found.names[identifier] = found.texts[name].replace("/", ".")
        elif tag in (0x0C, 0x1C):
            _segment(found, body)
        found.ended = tag == 0x2C
    assert found.ended
    return found


def _segment(found: Dump, body: memoryview) -> None:
    at = 0
    while at < len(body):
        tag, identifier = struct.unpack_from(">BQ", body, at)
        at += 9
        if tag in ROOTS:
            found.roots.append((tag, identifier))
            at += struct.calcsize(">" + ROOTS[tag])
        elif tag == 0x20:
            at = _class(found, identifier, body, at)
        elif tag == 0x21:
            _, class_id, length = struct.unpack_from(">IQI", body, at)
            found.instances[identifier] = class_id, bytes(body[at + 16 : at + 16 + length])
            at += 16 + length
        elif tag == 0x22:
            _, length, class_id = struct.unpack_from(">IIQ", body, at)
            found.arrays[identifier] = class_id, bytes(body[at + 16 : at + 16 + 8 * length])
            at += 16 + 8 * length
        else:
            assert tag == 0x23, tag
            _, length, kind = struct.unpack_from(">IIB", body, at)
            assert kind != OBJECT
            bytes_of = length * struct.calcsize(">" + TYPES[kind])
            found.numbers[identifier] = kind, bytes(body[at + 9 : at + 9 + bytes_of])
            at += 9 + bytes_of
    assert at == len(body)


def _class(found: Dump, identifier: int, body: memoryview, at: int) -> int:
    _, upper, loader, _, domain, _, _, size, constants = struct.unpack_from(">I6QIH", body, at)
    at += struct.calcsize(">I6QIH")
    assert constants == 0
    (count,) = struct.unpack_from(">H", body, at)
    at += 2
    statics: dict[str, object] = {}
    for _ in range(count):
        name, kind = struct.unpack_from(">QB", body, at)
        (value,) = struct.unpack_from(">" + TYPES[kind], body, at + 9)
        statics[found.texts[name]] = "NaN" if value != value else value
        at += 9 + struct.calcsize(">" + TYPES[kind])
    (count,) = struct.unpack_from(">H", body, at)
    fields = tuple(_fields(found, body, at + 2, count))
    assert identifier not in found.classes
    found.classes[identifier] = JavaClass(found.names[identifier], upper, loader, domain, size, fields, statics)
    return at + 2 + 9 * count


def _fields(found: Dump, body: memoryview, at: int, count: int) -> Iterator[tuple[str, int]]:
    for number in range(count):
        name, kind = struct.unpack_from(">QB", body, at + 9 * number)
        yield found.texts[name], kind
