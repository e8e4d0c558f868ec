"""The C engine's functions for glibc's chunks (common/native/glibc_chunks.c); see engine.py."""

from __future__ import annotations

from ctypes import byref, c_bool, c_uint64

from findleaks.allocators.glibc import engine as terms
from findleaks.allocators.glibc.engine import ChunkWalk, SoundChunks
from findleaks.engine.native.blocks import NativeBlocks
from findleaks.engine.native.declarations import CWords
from findleaks.engine.native.engine import NativeEngine
from findleaks.engine.native.memory import c_piece
from findleaks.target.base import Piece


def walk_chunks(blocks: NativeBlocks, piece: Piece, chunk: int, end: int) -> ChunkWalk:
    handle = blocks.open_handle()
    if not 0 <= chunk <= end <= blocks.arch.mask:
        return ChunkWalk(chunk, False, terms.describe_problem(terms.MISPLACED, chunk, 0, end))
    at, size, done = c_uint64(chunk), c_uint64(), c_bool()
    code = blocks.library.fl_walk_chunks(handle, c_piece(piece), byref(at), end, byref(size), byref(done))
    problem = terms.describe_problem(code, at.value, size.value, end)
    return ChunkWalk(at.value, done.value, problem, code == terms.DIFFERS)


def sound_chunks(engine: NativeEngine, piece: Piece, chunk: int, stop: int, normal: int, previous: int) -> SoundChunks:
    at, before, count, words = c_uint64(chunk), c_uint64(previous), c_uint64(), CWords()
    engine.library.fl_sound_chunks(c_piece(piece), byref(at), stop, normal, byref(before), byref(count), byref(words))
    return SoundChunks(at.value, before.value, count.value, engine.library.take(words))
