"""The contract of the engine's calls for glibc: append chunks to an index; find sound headers.

The loops are in engine_kernel.py (common/kernel/glibc_chunks.c) and in its twin, engine_python.py.
This module words the problems.
"""

from __future__ import annotations

from array import array
from importlib import import_module
from typing import Any, NamedTuple

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.kernel.blocks import KernelBlocks
from findleaks.target.base import Piece

# Why a walk over chunks stopped; glibc_chunks.c returns the same numbers.
OK, SMALL, UNALIGNED, PAST_END, MISPLACED, OVERLAP, MISSED, DIFFERS = range(8)


class ChunkWalk(NamedTuple):
    """The position of a walk over glibc's chunk headers. `problem` is "" or why the walk stopped
    early at `chunk`. `unsure`: only the state of the chunk before is in doubt; the walk may go
    on."""

    chunk: int  # address of the next chunk header
    done: bool
    problem: str
    unsure: bool = False


class SoundChunks(NamedTuple):
    """A run of headers that agree.

    `chunk`: the first header that does not agree, is outside the piece, or is not below the end.
    `previous`: the one before it, 0 if there is none. `headers`: how many agree. `free`: those of
    them, ascending, that the next header marks free.
    """

    chunk: int
    previous: int
    headers: int
    free: array[int]


def walk_chunks(blocks: Blocks, piece: Piece, chunk: int, end: int) -> ChunkWalk:
    """Append the blocks of glibc-style boundary-tagged chunks from the header at `chunk` up to
    `end`, while `piece` holds their size words. The result's `chunk` is where to continue with the
    next piece; pieces may be cut anywhere between words.

    `end` is the header of the chunk that closes the heap (top, or a fencepost); it becomes no
    block. The walk is done when `end` is reached and its PREV_INUSE bit was read, so pieces should
    extend to `end` + 2 words. A chunk's state is the PREV_INUSE bit of the next header; where that
    cannot be read, or is corrupt, the chunk counts as in use.

    Usable sizes: in use, the chunk's size less one word; free, less two (its last word is the next
    header's); with IS_MMAPPED (always in use, no following header needed), less two. So in use +
    free + one word for each block (two if free or mmapped) is the memory walked.

    The walk ends with a problem that names the chunk's address where its size is unaligned, less
    than four words or past `end`; and also where `chunk` is below blocks appended before, cannot be
    followed by a block (misaligned, or past `end`), or has its header below `piece`.

    Where a header says that the chunk before it is free, but the word before the header does not
    repeat that chunk's size, the walk stops there with `unsure` and the block counts as in use. A
    call with that `chunk` continues.
    """
    walked: ChunkWalk = _loops(isinstance(blocks, KernelBlocks)).walk_chunks(blocks, piece, chunk, end)
    return walked


def sound_chunks(engine: Engine, piece: Piece, chunk: int, stop: int, normal: int, previous: int) -> SoundChunks:
    """The run of headers from one chunk on that agree. `normal`: flags of a chunk in use that
    follows one in use; `previous`: the chunk before, or 0."""
    sound: SoundChunks = _loops(engine.name == "kernel").sound_chunks(engine, piece, chunk, stop, normal, previous)
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


def _loops(kernel: bool) -> Any:
    """The kernel's functions, or those of its twin."""
    return import_module(f"findleaks.allocators.glibc.{'engine_kernel' if kernel else 'engine_python'}")
