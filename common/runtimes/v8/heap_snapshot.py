"""Write the live objects of V8's heap as a heap snapshot (see snapshot_format.py). It is written
while the heap is read: edges are counted first, as a node has the number of its edges.

Node 0 is the root of all others; one node for each sort of roots follows, then the objects by
address. Source: V8 13.6, src/profiler/heap-snapshot-generator.cc (V8HeapExplorer::AddEntry)."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import BinaryIO

from findleaks.engine.terms import NO_BLOCK
from findleaks.runtimes import snapshot_format as form
from findleaks.runtimes.object_graph import LIVE
from findleaks.runtimes.v8.engine import NO_MAP, EdgeList
from findleaks.runtimes.v8.far_properties import EdgeInserter
from findleaks.runtimes.v8.metadata import TAG
from findleaks.runtimes.v8.names import ARRAY, CLOSURE, CODE, CONTEXT, SHAPE, STRING, SYSTEM
from findleaks.runtimes.v8.object_graph import V8Graph
from findleaks.runtimes.v8.reachability import pieces_of
from findleaks.target.elf import occurrences

_CATEGORIES = {
    SYSTEM: "hidden",
    ARRAY: "array",
    STRING: "string",
    CODE: "code",
    CLOSURE: "closure",
    "(regexp)": "regexp",
    "(number)": "number",
    "(concatenated string)": "concatenated string",
    "(sliced string)": "sliced string",
    "(symbol)": "symbol",
    "(bigint)": "bigint",
    SHAPE: "object shape",
}
"""Types of nodes by the names of names.py; others are objects."""

_NODE_NAMES = {"(concatenated string)": "(concatenated string)", "(sliced string)": "(sliced string)", "(number)": "heap number"}
_NAME_BITS, _ROOM, _SLICE = 28, 1 << 16, 1 << 18


class HeapSnapshotWriter:
    """Writes one snapshot of a graph of objects, which is marked. `report` is called with the part
    that is written, from 0 to 1."""

    def __init__(self, graph: V8Graph, report: Callable[[float], None]) -> None:
        self._graph, self._report = graph, report
        self._bytes = sum(end - start for start, end in graph.areas)
        self._texts: dict[str, int] = {"": 0}
        self._types = {one: number for number, one in enumerate(form.NODE_TYPES)}
        live = bytes(kind in LIVE for kind in range(256))
        self._live = bytes(graph.graph.kinds()).translate(live) if graph.graph is not None else b""
        self._sets = [one for one in graph.root_sets() if one.objects]
        first = 1 + len(self._sets)
        self._nodes = array("I", accumulate(self._live, initial=first))
        self.count = self._nodes.pop() if self._live else first
        for index in occurrences(self._live, b"\0"):
            self._nodes[index] = NO_MAP
        self._shapes, rows = self._list_shapes()
        self._edges = EdgeList(graph.blocks, self._shapes, self._nodes, rows, _ROOM)
        for number in range(len(rows) // 4):
            self._edges.add_shape(self._edge_names(number), graph.has_elements(number))

    def notes(self) -> list[str]:
        """Return sentences on the content of the snapshot that was written."""
        live = sum(self._live)
        return [f"{live:,} live objects; {len(self._live) - live:,} that are garbage are left out"]

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def _list_shapes(self) -> tuple[array[int], array[int]]:
        """Return the shape of each object, and the rows of the shapes. A shape is a map; contexts
        of one map whose variables have different names have different shapes."""
        shapes, rows = self._graph.numbers[:], self._graph.rows[:]
        self._contexts: dict[tuple[int, int, int], int] = {}
        self._examples = list(self._graph.first_objects)
        for index in self._graph.of_type(CONTEXT):
            key = (shapes[index], *self._graph.scope_of(index))
            if key not in self._contexts:
                self._contexts[key] = len(rows) // 4
                rows.extend(rows[4 * shapes[index] : 4 * shapes[index] + 4])
                self._examples.append(index)
            shapes[index] = self._contexts[key]
        return shapes, rows

    def _edge_names(self, shape: int) -> Sequence[int]:
        """Return the types and names of the edges of an object's words."""
        index = self._examples[shape]
        if index == NO_BLOCK:
            return ()
        names, numbers, found = self._graph.name_words(index), self._graph.number_words(index), array("I")
        for offset, name in sorted(names.items()):
            if offset % 8 == 0 and offset < 1 << 16 and offset not in numbers:
                found.extend([0] * (offset // 8 + 1 - len(found)))
                kind = form.CONTEXT if name.startswith("variable ") else form.PROPERTY if name.startswith((".", "[")) else form.INTERNAL
                plain = name.removeprefix("variable ") if kind == form.CONTEXT else _plain_name(name) if kind == form.PROPERTY else name
                found[offset // 8] = kind << _NAME_BITS | self._text(plain)
        return found

    def write(self, out: BinaryIO) -> None:
        """Write the snapshot. OSError: `out` cannot be written."""
        for _ in self._read_edges():
            pass
        listed, self._edges.counts = self._edges.counts, array("I", bytes(4 * len(self._edges.counts)))
        inserter = EdgeInserter(listed, self._far_edges(), form.PROPERTY)
        counts = inserter.add_counts()
        self._edges.state[0] = self._edges.state[1] = 0
        roots = sum(len(one.objects) for one in self._sets) + len(self._sets)
        form.write_head(out, self.count, sum(counts) + roots)
        self._write_nodes(out, counts)
        form.write_edges_start(out)
        self._write_root_edges(out)
        for part in inserter.insert(self._read_edges()):
            out.write(b"," + form.join_numbers(part))
        form.write_end(out, self._texts)

    def _far_edges(self) -> list[tuple[int, int, int]]:
        """Return object, name and node of the edges to values of properties outside of objects."""
        keys: dict[int, int] = {}
        found = [one for one in self._graph.far_properties() if self._live[one.owner]]
        edges = []
        for one, target in zip(found, self._graph.indices_of([one.value - TAG for one in found])):
            if target != NO_BLOCK and self._live[target]:
                if one.key not in keys:
                    keys[one.key] = self._text(_plain_name(self._graph.key_text(one.key)))
                edges.append((one.owner, keys[one.key], self._nodes[target]))
        return edges

    def _read_edges(self) -> Iterator[array[int]]:
        """Yield the edges of all objects, in the order of the nodes."""
        graph, done = self._graph, 0
        for piece in pieces_of(graph.target, graph.areas):
            more = True
            while more:
                more = self._edges.run(graph.engine, piece)
                if self._edges.found:
                    yield self._edges.found
            done += len(piece.data)
            self._report(min(done / (self._bytes or 1), 1.0))

    def _write_nodes(self, out: BinaryIO, counts: array[int]) -> None:
        out.write(form.join_numbers([form.SYNTHETIC, 0, 1, 0, len(self._sets), 0, 0]))
        for number, one in enumerate(self._sets, 1):
            name = self._text(f"({one.sort}s)" if not one.sort.endswith("s") else f"({one.sort})")
            out.write(b",\n" + form.join_numbers([form.SYNTHETIC, name, 2 * number + 1, 0, len(one.objects), 0, 0]))
        kinds, names = self._node_columns()
        for first in range(0, len(self._live), _SLICE):
            part = slice(first, first + _SLICE)
            sizes = self._graph.blocks.columns(first, min(first + _SLICE, len(self._live))).size
            # The identifier is odd, as those of objects are in V8's own snapshots.
            columns = zip(self._live[part], kinds[part], names[part], self._nodes[part], sizes, counts[part])
            rows = [f"{kind},{name},{2 * node + 1},{size},{count},0,0" for live, kind, name, node, size, count in columns if live]
            if rows:
                out.write(b",\n" + ",\n".join(rows).encode())

    def _node_columns(self) -> tuple[bytes, array[int]]:
        """Return the type and the name of each object's node."""
        graph, texts = self._graph, self._text
        types = [self._types[_CATEGORIES.get(name, "object")] for name in graph.type_names]
        default = array("I", (texts(self._node_name(name)) for name in graph.type_names))
        kinds = bytes(map(types.__getitem__, graph.numbers))
        names = array("I", map(default.__getitem__, graph.numbers))
        for index, text in graph.own_names():
            names[index] = texts(text)
        return kinds, names

    def _node_name(self, name: str) -> str:
        if name in (SYSTEM, ARRAY, CODE, STRING, CLOSURE):
            return "system" if name == SYSTEM else ""
        return _NODE_NAMES.get(name, name.strip("()") if name in _CATEGORIES else name)

    def _write_root_edges(self, out: BinaryIO) -> None:
        out.write(form.join_elements(range(1, len(self._sets) + 1)))
        for one in self._sets:
            targets = self._graph.indices_of(one.objects)
            out.write(b"," + form.join_elements([self._nodes[index] for index in targets]))


def _plain_name(name: str) -> str:
    """Return the name that V8 gives to the edge of a property. The argument is findleaks' name of
    the property, such as .name, ["a b"] or [symbol]."""
    if name.startswith('["'):
        return str(json.loads(name[1:-1]))
    return f"<symbol {name[1:-1]}>" if name.startswith("[") else name.removeprefix(".")
