"""Counting CPython's objects in the C kernel (common/kernel/cpython_objects.c)."""

from __future__ import annotations

from array import array

from findleaks.engine.contract import Blocks
from findleaks.engine.kernel.blocks import KernelBlocks
from findleaks.engine.kernel.engine import KernelEngine
from findleaks.engine.kernel.memory import CRange, c_array, c_piece
from findleaks.runtimes.cpython.engine import ObjectTally
from findleaks.target.base import Piece


def count_objects(engine: KernelEngine, blocks: Blocks, piece: Piece, tally: ObjectTally) -> array[int]:
    """See engine.py; `blocks` must be this engine's."""
    if not isinstance(blocks, KernelBlocks) or len(tally.found) != len(blocks):
        raise TypeError("blocks of another engine, or a tally of others")
    types = (c_array(tally.types), tally.offsets, tally.marks, tally.leaves, len(tally.types))
    program = CRange(tally.low, tally.high)
    outputs = (c_array(tally.found), c_array(tally.merged), c_array(tally.sums))
    return engine.library.words(engine.library.fl_objects, blocks.handle, c_piece(piece), *types, program, *outputs)
