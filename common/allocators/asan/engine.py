"""The engine's function for AddressSanitizer: reads the chunks of a size class. layout.py has the
layout."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

from findleaks.allocators.asan.layout import ALLOCATED, QUARANTINED, UNUSED, state_of, used_size
from findleaks.engine.contract import Engine
from findleaks.engine.loops import import_loops
from findleaks.target.base import Piece

DAMAGED = 255
"""The state of a chunk with a damaged header: the recorded address of the header is outside the
chunk, the state does not exist, or the size is 0 or too large. asan_chunks.c has the same
number."""


class Chunks(NamedTuple):
    """Chunks as columns, ascending: block, size, state, and the numbers of the stacks that
    allocated and freed it (0: none).

    The size is the requested one, or the whole capacity of unused and damaged chunks."""

    blocks: array[int]
    sizes: array[int]
    states: bytearray
    stacks: array[int]
    frees: array[int]


def examine_chunk(first: int, capacity: int, good: bool = True) -> tuple[int, int]:
    """Return size and state of a chunk, given the first word of its header. `good` is false if the
    header is at an invalid address."""
    size, state = used_size(first), state_of(first)
    if state == UNUSED:
        return capacity, state
    if not good or state not in (ALLOCATED, QUARANTINED) or not 0 < size <= capacity:
        return capacity, DAMAGED
    return size, state


def read_chunks(engine: Engine, piece: Piece, size: int) -> Chunks:
    """Read chunks of `size` bytes, which is 32 or more. The piece must consist of whole chunks."""
    loops: Any = import_loops(engine, "findleaks.allocators.asan")
    read: Chunks = loops.read_chunks(engine, piece, size)
    return read
