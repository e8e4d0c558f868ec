"""Find references of managed objects in the C engine (common/native/object_references.c)."""

from __future__ import annotations

from array import array

from findleaks.engine.native.engine import NativeEngine
from findleaks.engine.native.graph import NativeGraph
from findleaks.engine.native.memory import c_array, c_piece
from findleaks.runtimes.object_references import ObjectBlocks
from findleaks.target.base import Piece


def find_references(engine: NativeEngine, graph: NativeGraph, piece: Piece, objects: ObjectBlocks, with_object: bool) -> array[int]:
    """See object_references.py. `graph` must be a graph of the C engine."""
    if not isinstance(graph, NativeGraph) or len(objects.found) != len(graph.blocks):
        raise TypeError("a graph of another engine, or objects of others")
    library, known = engine.library, (c_array(objects.found), objects.offsets, objects.shift, with_object)
    return library.words(library.fl_object_references, graph.handle, c_piece(piece), *known)
