"""The Python reference engine's function for AddressSanitizer's chunks; see engine.py.

Tests compare it with asan_chunks.c."""

from __future__ import annotations

from array import array

from findleaks.allocators.asan.engine import Chunks, examine_chunk
from findleaks.allocators.asan.layout import HEADER, MAGIC, QUARANTINED
from findleaks.engine.contract import Engine
from findleaks.target.base import Piece

LOWER = 0xFFFFFFFF


def read_chunks(engine: Engine, piece: Piece, size: int) -> Chunks:
    made = Chunks(array("Q"), array("Q"), bytearray(), array("I"), array("I"))
    words, stride = memoryview(bytes(piece.data)).cast("Q"), size // 8
    for number in range(len(piece.data) // size):
        at = piece.address + number * size
        place, first = number * stride, words[number * stride]
        good = True
        if first == MAGIC:
            header = words[place + 1]
            good = header % HEADER == 0 and at < header < at + size - HEADER
            place = (header - piece.address) // 8 if good else place
            first = words[place]
        block = piece.address + 8 * place + HEADER
        used, state = examine_chunk(first, at + size - block, good)
        made.blocks.append(block)
        made.sizes.append(used)
        made.states.append(state)
        made.stacks.append(words[place + 1] & LOWER)
        made.frees.append(words[place + 2] & LOWER if state == QUARANTINED and used >= 8 else 0)
    return made
