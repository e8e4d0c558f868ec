"""The engine's function for scudo: reads the blocks of a size class. layout.py has the layout."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

from findleaks.engine.contract import Engine
from findleaks.engine.loops import import_loops
from findleaks.target.base import Piece

DAMAGED = 255
"""The state of a block whose chunk header is damaged: wrong checksum, class, size, state or
offset. scudo_blocks.c has the same number."""


class Chunks(NamedTuple):
    """Chunks as columns, ascending: address, size, state.

    The size is the requested one, or the whole capacity of available and damaged
    chunks."""

    chunks: array[int]
    sizes: array[int]
    states: bytearray


class ClassKey(NamedTuple):
    """What the header of each block of a class must have: the class's number, and a checksum that
    this algorithm (see checksum.py) computes with the allocator's cookie."""

    number: int
    cookie: int
    algorithm: int


def read_blocks(engine: Engine, piece: Piece, size: int, key: ClassKey) -> Chunks:
    """Read blocks of `size` bytes, which is 32 or more. The piece must consist of whole blocks."""
    loops: Any = import_loops(engine, "findleaks.allocators.scudo")
    read: Chunks = loops.read_blocks(engine, piece, size, key)
    return read
