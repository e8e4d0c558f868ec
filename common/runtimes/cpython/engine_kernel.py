"""Counting CPython's objects in the C kernel (common/kernel/cpython_objects.c)."""

from __future__ import annotations

from array import array
from ctypes import byref

from findleaks.engine.contract import Blocks
from findleaks.engine.kernel.blocks import KernelBlocks
from findleaks.engine.kernel.engine import KernelEngine
from findleaks.engine.kernel.library import CRange, CWords, check, taken
from findleaks.engine.kernel.memory import memory, passed
from findleaks.runtimes.cpython.engine import ObjectTally
from findleaks.target.base import Piece


def count_objects(engine: KernelEngine, blocks: Blocks, piece: Piece, tally: ObjectTally) -> array[int]:
    """See engine.py; `blocks` must be this engine's."""
    if not isinstance(blocks, KernelBlocks) or len(tally.found) != len(blocks):
        raise TypeError("blocks of another engine, or a tally of others")
    cut = CWords()
    types = (memory(tally.types), tally.offsets, tally.marks, tally.leaves, len(tally.types))
    program = CRange(tally.low, tally.high)
    outputs = (memory(tally.found), memory(tally.merged), memory(tally.sums), byref(cut))
    code = engine.library.fl_objects(blocks.handle, passed(piece), *types, program, *outputs)
    found = taken(engine.library, cut)
    check(code, "objects")
    return found
