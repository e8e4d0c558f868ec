"""Recognise PHP's values in the C engine (common/native/php_values.c, php_stale.c)."""

from __future__ import annotations

from array import array
from ctypes import byref

from findleaks.engine.native.blocks import NativeBlocks
from findleaks.engine.native.declarations import CWords
from findleaks.engine.native.engine import NativeEngine
from findleaks.engine.native.memory import c_array, c_piece
from findleaks.runtimes.php.engine import Values
from findleaks.target.base import Piece


def find_values(engine: NativeEngine, blocks: NativeBlocks, piece: Piece, values: Values) -> array[int]:
    """See engine.py. `blocks` must be blocks of this engine."""
    if len(values.found) != len(blocks):
        raise TypeError("values of other blocks")
    outputs = c_array(values.found), c_array(values.patterns or bytearray(1)), c_array(values.sums)
    cut, unused, runs = CWords(), CWords(), CWords()
    engine.library.fl_php_values(blocks.handle, c_piece(piece), *outputs, byref(cut), byref(unused), byref(runs))
    values.unused.extend(engine.library.take(unused))
    values.runs.extend(engine.library.take(runs))
    return engine.library.take(cut)


def sort_runs(engine: NativeEngine, runs: array[int]) -> None:
    """Sort runs by their start, and cut off what overlaps with the next run; see engine.py."""
    engine.library.fl_php_sort(c_array(runs), len(runs) // 3)


def find_stale(engine: NativeEngine, blocks: NativeBlocks, piece: Piece, runs: array[int]) -> array[int]:
    """Find the stale parts of runs in one piece; see engine.py."""
    stale = CWords()
    engine.library.fl_php_stale(blocks.handle, c_piece(piece), c_array(runs), len(runs) // 3, byref(stale))
    return engine.library.take(stale)
