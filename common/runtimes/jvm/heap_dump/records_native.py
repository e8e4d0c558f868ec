"""Encode Java objects in the C engine (common/native/java_records.c)."""

from __future__ import annotations

from ctypes import byref, c_uint64

from findleaks.engine.native.blocks import NativeBlocks
from findleaks.engine.native.engine import NativeEngine
from findleaks.engine.native.memory import c_array, c_bytes, c_numbers, c_piece
from findleaks.runtimes.jvm.engine_native import c_heap
from findleaks.runtimes.jvm.heap_dump.records import RecordEncoder, value_size
from findleaks.target.base import Piece


def encode_objects(engine: NativeEngine, piece: Piece, encoder: RecordEncoder) -> int:
    """See records.py; the blocks must be this engine's."""
    if not isinstance(encoder.blocks, NativeBlocks):
        raise TypeError("blocks of another engine")
    columns = c_array(encoder.ids), c_array(encoder.elements), c_array(encoder.first), c_array(encoder.fields)
    index, made = c_uint64(encoder.next), c_uint64()
    inputs = byref(c_piece(piece)), byref(c_heap(encoder.walk)), *c_numbers(encoder.numbers), *columns
    output = c_array(encoder.buffer), len(encoder.buffer), byref(made)
    result = engine.library.fl_java_records(encoder.blocks.handle, *inputs, byref(index), *output)
    encoder.next, encoder.length = index.value, made.value
    return int(result)


def encode_values(engine: NativeEngine, data: bytes, kind: int, encoder: RecordEncoder) -> bytes:
    """See records.py."""
    size = encoder.walk.references.size if kind == 2 else value_size(kind)
    out = bytearray(len(data) // size * value_size(kind))
    engine.library.fl_java_values(byref(c_heap(encoder.walk)), c_bytes(data), len(data) // size, kind, c_array(out))
    return bytes(out)
