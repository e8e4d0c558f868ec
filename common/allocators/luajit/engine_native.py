"""The C engine's function for LuaJIT's chunks (luajit_chunks.c); see engine.py."""

from __future__ import annotations

from ctypes import byref, c_uint64

from findleaks.allocators.luajit.engine import ChunkWalk
from findleaks.engine.native.engine import NativeEngine
from findleaks.engine.native.memory import c_array, c_piece, zeros
from findleaks.target.base import Piece


def walk_chunks(engine: NativeEngine, piece: Piece, chunk: int, free: int, limit: int, capacity: int) -> ChunkWalk:
    starts, sizes, states = zeros("Q", capacity), zeros("Q", capacity), zeros("B", capacity)
    at, before, made = c_uint64(chunk), c_uint64(free), c_uint64()
    bounds = (byref(at), byref(before), limit, capacity)
    code = engine.library.fl_walk_luajit(c_piece(piece), *bounds, *map(c_array, (starts, sizes, states)), byref(made))
    del starts[made.value :], sizes[made.value :], states[made.value :]
    return ChunkWalk(starts, sizes, bytearray(states), at.value, before.value, code)
