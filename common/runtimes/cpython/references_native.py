"""Find references of Python objects in the C engine (common/native/cpython_references.c)."""

from __future__ import annotations

from array import array

from findleaks.engine.native.engine import NativeEngine
from findleaks.engine.native.graph import NativeGraph
from findleaks.engine.native.memory import c_array, c_piece
from findleaks.runtimes.cpython.engine import ObjectTally
from findleaks.target.base import Piece


def find_references(engine: NativeEngine, graph: NativeGraph, piece: Piece, tally: ObjectTally, with_object: bool) -> array[int]:
    """See references.py; `graph` must be this engine's."""
    if not isinstance(graph, NativeGraph) or len(tally.found) != len(graph.blocks):
        raise TypeError("a graph of another engine, or a tally of others")
    library, known = engine.library, (c_array(tally.found), tally.offsets, tally.shift, with_object)
    return library.words(library.fl_python_references, graph.handle, c_piece(piece), *known)
