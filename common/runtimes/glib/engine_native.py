"""Recognise structures of GLib in the C engine (common/native/glib_structures.c)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import byref

from findleaks.engine.native.blocks import NativeBlocks
from findleaks.engine.native.declarations import CWords
from findleaks.engine.native.engine import NativeEngine
from findleaks.engine.native.memory import c_piece, c_ranges
from findleaks.target.base import Piece, Range


def find_structures(engine: NativeEngine, blocks: NativeBlocks, piece: Piece, code: Sequence[Range], quarks: int) -> array[int]:
    """See engine.py; each structure has three words."""
    found = CWords()
    engine.library.fl_glib_structures(blocks.handle, c_piece(piece), *c_ranges(code), quarks, byref(found))
    return engine.library.take(found)
