"""Count CPython's objects in the C engine (common/native/cpython_objects.c)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from findleaks.engine.contract import Blocks
from findleaks.engine.native.blocks import NativeBlocks
from findleaks.engine.native.engine import NativeEngine
from findleaks.engine.native.graph import NativeGraph
from findleaks.engine.native.memory import CRange, c_array, c_piece
from findleaks.runtimes.cpython.counts import BlockReader, CountColumns
from findleaks.runtimes.cpython.engine import ObjectTally
from findleaks.target.base import Piece


def count_objects(engine: NativeEngine, blocks: Blocks, piece: Piece, tally: ObjectTally) -> array[int]:
    """See engine.py; `blocks` must be this engine's."""
    if not isinstance(blocks, NativeBlocks) or len(tally.found) != len(blocks):
        raise TypeError("blocks of another engine, or a tally of others")
    types = (c_array(tally.types), tally.offsets, tally.marks, tally.leaves, tally.lives, len(tally.types), tally.shift)
    program = CRange(tally.low, tally.high)
    outputs = (c_array(tally.found), c_array(tally.merged), c_array(tally.patterns), c_array(tally.sums))
    return engine.library.words(engine.library.fl_objects, blocks.handle, c_piece(piece), *types, program, *outputs)


def immortal_objects(engine: NativeEngine, blocks: Blocks, piece: Piece, tally: ObjectTally) -> array[int]:
    """See engine.py; `blocks` must be this engine's."""
    if not isinstance(blocks, NativeBlocks) or len(tally.found) != len(blocks):
        raise TypeError("blocks of another engine, or a tally of others")
    library = engine.library
    return library.words(library.fl_immortal_objects, blocks.handle, c_piece(piece), c_array(tally.found), tally.offsets)


def compare_counts(
    engine: NativeEngine, graph: NativeGraph, pieces: Iterable[Piece], read: BlockReader, tally: ObjectTally, columns: CountColumns
) -> None:
    """See counts.py; `graph` must be this engine's."""
    library, found = engine.library, c_array(tally.found)
    excess, flags = c_array(columns.excess), c_array(columns.flags or bytearray(1))
    library.fl_lost_references(graph.handle, False, excess)
    arguments = found, tally.offsets, tally.shift, flags, excess
    for piece in pieces:
        for address in library.words(library.fl_compare_counts, graph.handle, c_piece(piece), *arguments):
            whole = read(address)
            if whole is not None:
                library.words(library.fl_compare_counts, graph.handle, c_piece(whole), *arguments)
    outputs = c_array(columns.verdicts or bytearray(1)), c_array(columns.sums), c_array(columns.totals)
    library.fl_judge_counts(graph.handle, found, flags, excess, *outputs)
