"""Find unused words of lists and of values in the C engine (common/native/cpython_storage.c)."""

from __future__ import annotations

from array import array

from findleaks.engine.contract import Blocks
from findleaks.engine.native.blocks import NativeBlocks
from findleaks.engine.native.engine import NativeEngine
from findleaks.engine.native.memory import c_array, c_piece
from findleaks.runtimes.cpython.engine import ObjectTally
from findleaks.runtimes.cpython.storage import Storage
from findleaks.target.base import Piece


def claim_storage(engine: NativeEngine, blocks: Blocks, piece: Piece, tally: ObjectTally, storage: Storage, claims: array[int]) -> None:
    """See storage.py; `blocks` must be this engine's."""
    if not isinstance(blocks, NativeBlocks) or len(tally.found) != len(blocks):
        raise TypeError("blocks of another engine, or a tally of others")
    found = c_array(tally.found)
    owned = storage.kinds, c_array(storage.buffers)
    engine.library.fl_claim_storage(blocks.handle, c_piece(piece), found, tally.offsets, *owned, tally.shift, c_array(claims))


def unused_storage(
    engine: NativeEngine, blocks: Blocks, piece: Piece, tally: ObjectTally, claims: array[int], tails: bytes, heads: bytearray
) -> array[int]:
    """See storage.py; `blocks` must be this engine's."""
    if not isinstance(blocks, NativeBlocks) or len(tally.found) != len(blocks):
        raise TypeError("blocks of another engine, or a tally of others")
    known = (c_array(tally.found), tally.offsets, tally.shift, c_array(claims), tails, c_array(heads), c_array(tally.patterns))
    return engine.library.words(engine.library.fl_unused_storage, blocks.handle, c_piece(piece), *known)
