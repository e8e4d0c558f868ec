"""Walk the objects of a Java heap in the C engine (common/native/java_objects.c and
java_references.c)."""

from __future__ import annotations

from array import array
from ctypes import byref

from findleaks.engine.contract import Graph
from findleaks.engine.native.declarations import CJavaHeap, CJavaMoves
from findleaks.engine.native.engine import NativeEngine
from findleaks.engine.native.graph import NativeGraph
from findleaks.engine.native.library import DISORDER
from findleaks.engine.native.memory import c_array, c_numbers, c_piece
from findleaks.runtimes.jvm.engine import ObjectWalk, ReferenceSearch
from findleaks.target.base import Piece


def c_heap(walk: ObjectWalk) -> CJavaHeap:
    """Return the layout of the heap, and its classes, for C."""
    table = walk.table
    hashed = c_array(table.keys), c_array(table.numbers), len(table.keys) - 1
    maps = c_array(table.map_first), c_array(table.maps)
    *numbers, colors = walk.references
    moves = (CJavaMoves(c_array(one.before), c_array(one.now), len(one.before)) for one in (colors.young, colors.old))
    encoding = *numbers, colors.place, colors.offsets, colors.current, *moves
    return CJavaHeap(*walk.header, *hashed, c_array(table.rows), len(table), *encoding, *maps)


def walk_objects(engine: NativeEngine, piece: Piece, walk: ObjectWalk) -> int:
    """See engine.py."""
    found = c_array(walk.starts), c_array(walk.sizes), *c_numbers(walk.numbers), len(walk.starts)
    outputs = *found, c_array(walk.table.totals), c_array(walk.moved) if walk.moved else None
    arguments = byref(c_piece(piece)), byref(c_heap(walk)), c_array(walk.state), *outputs
    return int(engine.library.fl_java_objects(*arguments))


def select_objects(engine: NativeEngine, numbers: array[int], marks: bytearray, most: int) -> array[int]:
    """See engine.py."""
    found = array("I", bytes(4 * (most or 1)))
    return found[: engine.library.fl_java_select(*c_numbers(numbers), len(numbers), c_array(marks), c_array(found))]


def scan_references(engine: NativeEngine, graph: Graph, piece: Piece, search: ReferenceSearch) -> None:
    """See engine.py; the graph must be this engine's."""
    if not isinstance(graph, NativeGraph):
        raise TypeError("a graph of another engine")
    inputs = *c_numbers(search.numbers), c_array(search.mirrors), c_array(search.extra), len(search.extra)
    result = engine.library.fl_java_references(graph.handle, byref(c_piece(piece)), byref(c_heap(search.walk)), *inputs)
    if result == DISORDER:
        raise ValueError(f"piece {piece.address:#x} lies below the scanned memory")
