"""Find unused words of objects in the C engine (common/native/cpython_remains.c)."""

from __future__ import annotations

from array import array

from findleaks.engine.contract import Blocks
from findleaks.engine.native.blocks import NativeBlocks
from findleaks.engine.native.engine import NativeEngine
from findleaks.engine.native.memory import c_array, c_piece
from findleaks.runtimes.cpython.engine import ObjectTally
from findleaks.runtimes.cpython.remains import Remains
from findleaks.target.base import Piece


def object_remains(engine: NativeEngine, blocks: Blocks, piece: Piece, tally: ObjectTally, remains: Remains) -> array[int]:
    """See remains.py; `blocks` must be this engine's."""
    if not isinstance(blocks, NativeBlocks) or len(tally.found) != len(blocks):
        raise TypeError("blocks of another engine, or a tally of others")
    types = tally.offsets, remains.kinds, tally.lives
    inputs = c_array(tally.found), *types, c_array(array("Q", remains.layout)), c_array(remains.sizes), remains.grown
    outputs = c_array(remains.tails), c_array(tally.patterns)
    return engine.library.words(engine.library.fl_object_remains, blocks.handle, c_piece(piece), *inputs, *outputs)
