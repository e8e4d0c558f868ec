"""The Python reference engine's function for LuaJIT's chunks; see engine.py.

Tests compare it with luajit_chunks.c."""

from __future__ import annotations

from array import array

from findleaks.allocators.luajit.engine import DIFFERS, ENDS, MORE, NO_SIZE, ChunkWalk
from findleaks.allocators.luajit.layout import FENCEPOST, HEADER, IN_USE, LEAST, PREVIOUS_IN_USE
from findleaks.engine.reference.engine import PureEngine
from findleaks.engine.terms import State
from findleaks.target.base import Piece


def walk_chunks(engine: PureEngine, piece: Piece, chunk: int, free: int, limit: int, capacity: int) -> ChunkWalk:
    starts, sizes, states, code = array("Q"), array("Q"), bytearray(), MORE
    word = engine.arch.word
    while len(starts) < capacity:
        offset = chunk - piece.address
        if chunk == limit:
            code = ENDS
            break
        if not 0 <= offset <= len(piece.data) - HEADER:
            break
        previous, head = engine.arch.words(piece.data[offset : offset + HEADER])
        size = head & -8
        if head == FENCEPOST:
            code = ENDS
        elif head & 7 & ~(PREVIOUS_IN_USE | IN_USE) or size < LEAST or size > limit - chunk:
            code = NO_SIZE
        elif bool(head & PREVIOUS_IN_USE) == bool(free) or (free and previous != free):
            code = DIFFERS
        if code:
            break
        starts.append(chunk + HEADER)
        sizes.append(size - word)
        states.append(State.IN_USE if head & IN_USE else State.FREE)
        free = 0 if head & IN_USE else size
        chunk += size
    return ChunkWalk(starts, sizes, states, chunk, free, code)
