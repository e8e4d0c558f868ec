"""The engine's functions for glibc: one appends chunks to an index, another finds headers that
agree with each other.

engine_native.py (common/native/glibc_chunks.c) and engine_reference.py implement them."""

from __future__ import annotations

from array import array
from importlib import import_module
from typing import Any

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.native.blocks import NativeBlocks
from findleaks.target.base import Piece
from findleaks.value_classes import NamedTuple

# The reason why a walk over chunks stopped. glibc_chunks.c returns the same numbers.
OK, SMALL, UNALIGNED, PAST_END, MISPLACED, OVERLAP, MISSED, DIFFERS = range(8)


class ChunkWalk(NamedTuple):
    """The position of a walk over glibc's chunk headers."""

    chunk: int  # address of the next chunk header
    done: bool
    problem: str  # the reason why the walk stopped early at `chunk`, or ""
    unsure: bool = False  # only the state of the previous chunk is in doubt; the walk may continue


class SoundChunks(NamedTuple):
    """A run of headers that agree with each other."""

    # the first header that does not agree, is outside the piece, or is not below the end
    chunk: int
    previous: int  # the header before `chunk`, or 0
    headers: int  # the number of headers that agree
    free: array[int]  # chunks of the run that the next header marks free, ascending


def walk_chunks(blocks: Blocks, piece: Piece, chunk: int, end: int) -> ChunkWalk:
    """Append the blocks of consecutive chunks from the header at `chunk` to `end`, while `piece`
    contains their size words. To continue with the next piece, pass the result's `chunk`. A piece
    may end between any two words.

    `end` is the header of the chunk that ends the heap (top or a fencepost), which is not a block.
    PREV_INUSE in the next header gives the state of a chunk, so the walk is done when it has read
    this bit of the header at `end`, and pieces should extend to `end` + 2 words. If the next header
    is unreadable or corrupt, the chunk counts as in use.

    The usable size is the chunk's size less one word. It is two words less if the chunk is free
    (its last word is prev_size of the next) or IS_MMAPPED (always in use, without a next header).

    The walk ends with a problem that names the chunk if

    - its size is unaligned, less than four words, or reaches past `end`
    - `chunk` is below blocks that were appended before, is misaligned, or is past `end`
    - its header is below `piece`

    The walk stops with `unsure` at a header that marks the chunk before it free, although the copy
    of that chunk's size is wrong. That chunk counts as in use. Call again with the same `chunk` to
    continue."""
    walked: ChunkWalk = _loops(isinstance(blocks, NativeBlocks)).walk_chunks(blocks, piece, chunk, end)
    return walked


def sound_chunks(engine: Engine, piece: Piece, chunk: int, stop: int, normal: int, previous: int) -> SoundChunks:
    """Find the run of headers from `chunk` on that agree with each other. `normal` are the flags of
    a chunk in use after another chunk in use. `previous` is the chunk before `chunk`, or 0."""
    sound: SoundChunks = _loops(engine.name == "native").sound_chunks(engine, piece, chunk, stop, normal, previous)
    return sound


def describe_problem(code: int, chunk: int, size: int, end: int) -> str:
    """Return the reason why a walk stopped at `chunk`, whose header gives `size`; "" for OK."""
    why = {
        SMALL: f"size {size:#x} is less than that of the smallest chunk",
        UNALIGNED: f"size {size:#x} is not aligned",
        PAST_END: f"size {size:#x} reaches past the heap's end at {end:#x}",
        MISPLACED: "is not at an address where a chunk can be",
        OVERLAP: "lies below blocks found before it",
        MISSED: "its header is missing",
        DIFFERS: "marks the chunk before it free, but the copy of its size differs",
    }
    return f"chunk {chunk:#x}: {why[code]}" if code else ""


def _loops(native: bool) -> Any:
    return import_module(f"findleaks.allocators.glibc.{'engine_native' if native else 'engine_reference'}")
