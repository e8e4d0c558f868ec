"""The C engine's function for scudo's blocks (scudo_blocks.c); see engine.py."""

from __future__ import annotations

from findleaks.allocators.scudo.engine import Chunks, ClassKey
from findleaks.engine.native.engine import NativeEngine
from findleaks.engine.native.memory import c_array, c_piece, zeros
from findleaks.target.base import Piece


def read_blocks(engine: NativeEngine, piece: Piece, size: int, key: ClassKey) -> Chunks:
    count = len(piece.data) // size
    made = Chunks(zeros("Q", count), zeros("Q", count), bytearray(count))
    if count:
        columns = (c_array(made.chunks), c_array(made.sizes), c_array(made.states))
        engine.library.fl_scudo_blocks(c_piece(piece), size, *key, *columns)
    return made
