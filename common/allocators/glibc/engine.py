"""The engine's calls for glibc: append chunks to an index; find sound headers.

engine_native.py (common/native/glibc_chunks.c) and engine_reference.py implement them."""

from __future__ import annotations

from array import array
from importlib import import_module
from typing import Any

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.native.blocks import NativeBlocks
from findleaks.target.base import Piece
from findleaks.value_classes import NamedTuple

# Why a walk over chunks stopped; glibc_chunks.c returns the same numbers.
OK, SMALL, UNALIGNED, PAST_END, MISPLACED, OVERLAP, MISSED, DIFFERS = range(8)


class ChunkWalk(NamedTuple):
    """The position of a walk over glibc's chunk headers."""

    chunk: int  # address of the next chunk header
    done: bool
    problem: str  # "" or why the walk stopped early at `chunk`
    unsure: bool = False  # only the state of the chunk before is in doubt; the walk may go on


class SoundChunks(NamedTuple):
    """A run of headers that agree."""

    chunk: int  # the first header that does not agree, is outside the piece, or not below the end
    previous: int  # the header before `chunk`, 0 if there is none
    headers: int  # how many agree
    free: array[int]  # those of them, ascending, that the next header marks free


def walk_chunks(blocks: Blocks, piece: Piece, chunk: int, end: int) -> ChunkWalk:
    """Append the blocks of glibc-style boundary-tagged chunks from the header at `chunk` to `end`,
    while `piece` holds their size words. To continue with the next piece, pass the result's
    `chunk`; pieces may be cut between any words.

    `end` is the header of the chunk that closes the heap (top, or a fencepost), no block. The walk
    is done when its PREV_INUSE bit was read, so pieces should extend to `end` + 2 words. A chunk's
    state is the next header's PREV_INUSE; in use where that is unreadable or corrupt. A usable size
    is the chunk's less one word; less two if free (its last word is the next header's) or
    IS_MMAPPED (always in use, no following header needed).

    The walk ends with a problem that names the chunk where its size is unaligned, less than four
    words or past `end`, or where `chunk` is below blocks appended before, cannot be followed by a
    block (misaligned, or past `end`), or has its header below `piece`. It stops with `unsure` at a
    header that calls the chunk before it free (it counts as in use) while the word before the
    header does not repeat that chunk's size. A call with that `chunk` continues."""
    walked: ChunkWalk = _loops(isinstance(blocks, NativeBlocks)).walk_chunks(blocks, piece, chunk, end)
    return walked


def sound_chunks(engine: Engine, piece: Piece, chunk: int, stop: int, normal: int, previous: int) -> SoundChunks:
    """`normal`: flags of a chunk in use behind one in use; `previous`: the chunk before, or 0."""
    sound: SoundChunks = _loops(engine.name == "native").sound_chunks(engine, piece, chunk, stop, normal, previous)
    return sound


def chunk_problem(code: int, chunk: int, size: int, end: int) -> str:
    """Why a walk stopped at `chunk`, whose header gives `size`; "" for OK."""
    why = {
        SMALL: f"size {size:#x} is less than a chunk's least",
        UNALIGNED: f"size {size:#x} is not aligned",
        PAST_END: f"size {size:#x} reaches past the heap's end at {end:#x}",
        MISPLACED: "is not at an address where a chunk can be",
        OVERLAP: "lies below blocks found before it",
        MISSED: "its header is not in memory",
        DIFFERS: "says that the chunk before it is free, but the copy of that one's size differs",
    }
    return f"chunk {chunk:#x}: {why[code]}" if code else ""


def _loops(native: bool) -> Any:
    return import_module(f"findleaks.allocators.glibc.{'engine_native' if native else 'engine_reference'}")
