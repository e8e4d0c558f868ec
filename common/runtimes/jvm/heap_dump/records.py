"""Encode Java objects as records of a heap dump (HPROF 1.0.2).

This module states the contract of records_native.py (common/native/java_records.c) and
records_reference.py. Numbers in a heap dump are big-endian, and an identifier is the address of an
object, in 8 bytes.

Source: OpenJDK 17, src/hotspot/share/services/heapDumper.cpp, which describes the format."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Protocol, cast

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.loops import import_loops
from findleaks.runtimes.jvm.engine import ObjectWalk
from findleaks.target.base import Piece

OBJECT = 2
TYPES = {"L": OBJECT, "[": OBJECT, "Z": 4, "C": 5, "F": 6, "D": 7, "B": 8, "S": 9, "I": 10, "J": 11}
"""Types of values, by the first character of a signature."""

INSTANCE_DUMP, OBJECT_ARRAY_DUMP, PRIMITIVE_ARRAY_DUMP = 0x21, 0x22, 0x23
TRACE = 1
"""The number of the call stack that allocated an object. It is always that of an empty stack."""


def value_size(kind: int) -> int:
    """Return the bytes of a value of this type in a heap dump."""
    return 8 if kind == OBJECT else 1 << (kind & 3)


class Written(IntEnum):
    """The reason why a call of `RecordEncoder.run` ends."""

    DONE = 0  # no further object begins in the piece
    NO_ROOM = 1  # the buffer is full
    PARTLY_PRESENT = 2  # the next object is not wholly in the piece


class RecordEncoder:
    """Encodes the objects of `blocks` in order. `numbers` has the class of each object.

    For class n of the walk's table, `ids[n]` is the identifier of the class, or 0: its objects get
    no record. `elements[n]` is the type of an array's elements. `fields` has pairs of an offset and
    a type; those of class n begin with pair first[n], and end before pair first[n + 1]. A value
    beyond the end of an object is 0. Mirrors get no record.

    `next` is the index of the next object."""

    def __init__(self, walk: ObjectWalk, blocks: Blocks, numbers: array[int], room: int) -> None:
        self.walk, self.blocks, self.numbers = walk, blocks, numbers
        self.ids, self.elements = array("Q"), bytearray()
        self.first, self.fields = array("I", [0]), array("I")
        self.next = 0
        self.buffer = bytearray(room)
        self.length = 0

    def add_class(self, identifier: int, element: int, fields: Sequence[tuple[int, int]]) -> None:
        """Add the next class of the table."""
        self.ids.append(identifier)
        self.elements.append(element)
        for one in fields:
            self.fields.extend(one)
        self.first.append(len(self.fields) // 2)

    def run(self, engine: Engine, piece: Piece) -> Written:
        """Encode objects that begin in a piece. The records are in `buffer`, up to `length`."""
        return Written(loops(engine).encode_objects(engine, piece, self))

    def encode_values(self, engine: Engine, data: bytes, kind: int) -> bytes:
        """Encode elements of an array, of which `data` contains whole ones."""
        return loops(engine).encode_values(engine, data, kind, self)


def loops(engine: Engine) -> Loops:
    """Return the loops that belong to an engine."""
    return cast(Loops, import_loops(engine, "findleaks.runtimes.jvm.heap_dump", "records"))


class Loops(Protocol):
    """The interface of records_native.py and records_reference.py."""

    def encode_objects(self, engine: Any, piece: Piece, encoder: RecordEncoder) -> int: ...

    def encode_values(self, engine: Any, data: bytes, kind: int, encoder: RecordEncoder) -> bytes: ...
