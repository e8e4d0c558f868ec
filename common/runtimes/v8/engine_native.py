"""Walk the objects of V8's pages in the C engine (common/native/v8_objects.c and
v8_references.c)."""

from __future__ import annotations

from array import array
from ctypes import byref

from findleaks.engine.contract import Graph
from findleaks.engine.native.blocks import NativeBlocks
from findleaks.engine.native.engine import NativeEngine
from findleaks.engine.native.graph import NativeGraph
from findleaks.engine.native.library import DISORDER
from findleaks.engine.native.memory import c_array, c_piece
from findleaks.runtimes.v8.engine import REFERENCE_ROW, EdgeList, ObjectWalk, ReferenceSearch
from findleaks.target.base import Piece


def walk_objects(engine: NativeEngine, piece: Piece, walk: ObjectWalk) -> int:
    """See engine.py."""
    table = walk.table
    hashed = c_array(table.keys), c_array(table.numbers), len(table.keys) - 1
    rows = c_array(table.rows), len(table), c_array(table.totals), c_array(table.firsts)
    words = map(c_array, (walk.state, walk.targets, walk.starts, walk.sizes))
    found = *words, c_array(walk.owners), c_array(walk.maps), len(walk.targets), len(walk.starts)
    return int(engine.library.fl_v8_objects(byref(c_piece(piece)), *hashed, *rows, *found))


def scan_references(engine: NativeEngine, graph: Graph, piece: Piece, search: ReferenceSearch) -> None:
    """See engine.py; the graph must be this engine's."""
    if not isinstance(graph, NativeGraph):
        raise TypeError("a graph of another engine")
    inputs = c_array(search.maps), c_array(search.rows), len(search.rows) // REFERENCE_ROW, c_array(search.extra), len(search.extra)
    if engine.library.fl_v8_references(graph.handle, byref(c_piece(piece)), *inputs) == DISORDER:
        raise ValueError(f"piece {piece.address:#x} lies below the scanned memory")


def list_edges(engine: NativeEngine, piece: Piece, edges: EdgeList) -> int:
    """See engine.py; the blocks must be this engine's."""
    if not isinstance(edges.blocks, NativeBlocks):
        raise TypeError("blocks of another engine")
    shapes = c_array(edges.shapes), c_array(edges.rows), c_array(edges.firsts), c_array(edges.names or array("I", [0]))
    inputs = *shapes, c_array(edges.tails), len(edges.tails), c_array(edges.nodes)
    outputs = c_array(edges.state), c_array(edges.counts), c_array(edges.out), len(edges.out) // 3
    return int(engine.library.fl_v8_edges(edges.blocks.handle, byref(c_piece(piece)), *inputs, *outputs))
