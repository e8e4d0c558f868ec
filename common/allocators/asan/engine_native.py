"""The C engine's function for AddressSanitizer's chunks (asan_chunks.c); see engine.py."""

from __future__ import annotations

from findleaks.allocators.asan.engine import Chunks
from findleaks.engine.native.engine import NativeEngine
from findleaks.engine.native.memory import c_array, c_piece, zeros
from findleaks.target.base import Piece


def read_chunks(engine: NativeEngine, piece: Piece, size: int) -> Chunks:
    count = len(piece.data) // size
    made = Chunks(zeros("Q", count), zeros("Q", count), bytearray(count), zeros("I", count), zeros("I", count))
    if count:
        columns = (c_array(made.blocks), c_array(made.sizes), c_array(made.states), c_array(made.stacks), c_array(made.frees))
        engine.library.fl_asan_chunks(c_piece(piece), size, *columns)
    return made
