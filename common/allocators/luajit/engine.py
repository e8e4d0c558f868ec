"""The engine's function for LuaJIT's allocator: walks the chunks of a segment. layout.py has the
layout."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

from findleaks.engine.contract import Engine
from findleaks.engine.loops import import_loops
from findleaks.target.base import Piece

MORE, ENDS, DIFFERS, NO_SIZE = range(4)
"""Why a walk stopped; luajit_chunks.c has the same numbers."""


class ChunkWalk(NamedTuple):
    """Blocks as columns, ascending; where the walk stopped, and why.

    `chunk` is the next chunk. `free` is the size of the chunk before it if that is free, else 0.
    MORE: the next header is beyond the piece or the capacity. ENDS: the chunks end. DIFFERS: the
    header disagrees with the chunk before about its state or size. NO_SIZE: the header has no valid
    size."""

    starts: array[int]
    sizes: array[int]
    states: bytearray
    chunk: int
    free: int
    code: int


def walk_chunks(engine: Engine, piece: Piece, chunk: int, free: int, limit: int, capacity: int) -> ChunkWalk:
    """Walk the chunks in `piece` from the header at `chunk` on, up to `limit` or a fencepost.
    Return at most `capacity` blocks. `free`: see ChunkWalk."""
    loops: Any = import_loops(engine, "findleaks.allocators.luajit")
    walked: ChunkWalk = loops.walk_chunks(engine, piece, chunk, free, limit, capacity)
    return walked
