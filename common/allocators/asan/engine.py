"""The engine's call for AddressSanitizer: the chunks of a size class. Layout: see layout.py."""

from __future__ import annotations

from array import array
from importlib import import_module
from typing import Any, NamedTuple

from findleaks.allocators.asan.layout import ALLOCATED, QUARANTINED, UNUSED, state_of, used_size
from findleaks.engine.contract import Engine
from findleaks.target.base import Piece

DAMAGED = 255
"""In place of a chunk's state: the header is said to be outside, the state does not exist, or the
size is 0 or does not fit. asan_chunks.c has the same number."""


class Chunks(NamedTuple):
    """Chunks by columns, ascending: block, requested size (of unused and damaged ones: all that
    there is), state, and the numbers of the stacks that allocated and freed it ("I", 0: none)."""

    blocks: array[int]
    sizes: array[int]
    states: bytearray
    stacks: array[int]
    frees: array[int]


def settled(first: int, capacity: int, good: bool = True) -> tuple[int, int]:
    """Size and state of a chunk with this first word of a header, where it is `good`."""
    size, state = used_size(first), state_of(first)
    if state == UNUSED:
        return capacity, state
    if not good or state not in (ALLOCATED, QUARANTINED) or not 0 < size <= capacity:
        return capacity, DAMAGED
    return size, state


def read_chunks(engine: Engine, piece: Piece, size: int) -> Chunks:
    """The chunks of `size` bytes, 32 at least, of which the piece has nothing but whole ones."""
    kind = "engine_native" if engine.name == "native" else "engine_reference"
    loops: Any = import_module(f"findleaks.allocators.asan.{kind}")
    read: Chunks = loops.read_chunks(engine, piece, size)
    return read
