"""Encode Java objects in Python: the reference for common/native/java_records.c."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from findleaks.engine.reference.engine import PureEngine
from findleaks.runtimes.jvm.engine import FIXED, MIRROR, OBJECTS, ROW
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
from findleaks.target.base import Piece

_HEAD, _MOST_FIELD = 25, 8  # bytes of a record before the values, and at most of a value


def encode_values(engine: PureEngine, data: bytes, kind: int, encoder: RecordEncoder) -> bytes:
    """See records.py."""
    references = encoder.walk.references
    size = references.size if kind == OBJECT else value_size(kind)
    order = engine.arch.byteorder
    values = (int.from_bytes(data[at : at + size], order) for at in range(0, len(data) // size * size, size))
    if kind == OBJECT:
        values = (references.decode(value) for value in values)
    return b"".join(value.to_bytes(value_size(kind), "big") for value in values)


def encode_objects(engine: PureEngine, piece: Piece, encoder: RecordEncoder) -> int:
    """See records.py."""
    blocks, table = encoder.blocks, encoder.walk.table
    made, top = bytearray(), piece.address + len(piece.data)
    result = Written.DONE
    while encoder.next < len(blocks) and (start := blocks.address(encoder.next)) < top:
        number = encoder.numbers[encoder.next]
        if number < len(table) and encoder.ids[number] and table.rows[ROW * number] != MIRROR:
            size = blocks.size(encoder.next)
            least = encoder.walk.header.length_at + (0 if table.rows[ROW * number] == FIXED else 4)
            if start < piece.address or start + size > top or size < least:
                result = Written.PARTLY_PRESENT
                break
            record, needed = _record(engine, start, bytes(piece.data[start - piece.address :][:size]), number, encoder)
            if needed > len(encoder.buffer) - len(made):
                result = Written.NO_ROOM
                break
            made += record
        encoder.next += 1
    encoder.buffer[: len(made)], encoder.length = made, len(made)
    return result


def _record(engine: PureEngine, start: int, data: bytes, number: int, encoder: RecordEncoder) -> tuple[bytes, int]:
    """Return the record of an object, and how many bytes must be free in the buffer."""
    kind, first = encoder.walk.table.rows[ROW * number : ROW * number + 2]
    identifier, element = encoder.ids[number], encoder.elements[number]
    if kind == FIXED:
        values = b"".join(_values(engine, data, number, encoder))
        fields = encoder.first[number + 1] - encoder.first[number]
        return struct.pack(">BQIQI", INSTANCE_DUMP, start, TRACE, identifier, len(values)) + values, _HEAD + _MOST_FIELD * fields
    size = encoder.walk.references.size if element == OBJECT else value_size(element)
    at = encoder.walk.header.length_at
    length = min(int.from_bytes(data[at : at + 4], engine.arch.byteorder), max(len(data) - first, 0) // size)
    if kind == OBJECTS:
        head = struct.pack(">BQIIQ", OBJECT_ARRAY_DUMP, start, TRACE, length, identifier)
    else:
        head = struct.pack(">BQIIB", PRIMITIVE_ARRAY_DUMP, start, TRACE, length, element)
    values = encode_values(engine, data[first : first + length * size], element, encoder)
    return head + values, _HEAD + length * (8 if kind == OBJECTS else size)


def _values(engine: PureEngine, data: bytes, number: int, encoder: RecordEncoder) -> Iterator[bytes]:
    """Yield the values of an instance."""
    for pair in range(encoder.first[number], encoder.first[number + 1]):
        offset, kind = encoder.fields[2 * pair : 2 * pair + 2]
        size = encoder.walk.references.size if kind == OBJECT else value_size(kind)
        one = data[offset : offset + size]
        yield encode_values(engine, one, kind, encoder) if len(one) == size else bytes(value_size(kind))
