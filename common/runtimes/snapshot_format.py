"""The format of heap snapshots that Chrome DevTools reads. The file is JSON: a header, the nodes,
the edges, and a table of texts, to which nodes and edges refer by number. A node has the number of
its edges.

Source: V8 13.6, src/profiler/heap-snapshot-generator.cc (HeapSnapshotJSONSerializer)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import BinaryIO

_PLAIN_TYPES = "hidden array string object code closure regexp number native synthetic"
NODE_TYPES = [*_PLAIN_TYPES.split(), "concatenated string", "sliced string", "symbol", "bigint", "object shape"]
EDGE_TYPES = ["context", "element", "property", "internal", "hidden", "shortcut", "weak"]
CONTEXT, ELEMENT, PROPERTY, INTERNAL = range(4)
OBJECT, SYNTHETIC = 3, 9
NODE_FIELDS = 7
_SLICE = 1 << 18
_META = {
    "node_fields": ["type", "name", "id", "self_size", "edge_count", "trace_node_id", "detachedness"],
    "node_types": [NODE_TYPES, "string", "number", "number", "number", "number", "number"],
    "edge_fields": ["type", "name_or_index", "to_node"],
    "edge_types": [EDGE_TYPES, "string_or_number", "node"],
    "trace_function_info_fields": ["function_id", "name", "script_name", "script_id", "line", "column"],
    "trace_node_fields": ["id", "function_info_index", "count", "size", "children"],
    "sample_fields": ["timestamp_us", "last_assigned_id"],
    "location_fields": ["object_index", "script_id", "line", "column"],
}


def write_head(out: BinaryIO, nodes: int, edges: int) -> None:
    """Write the header of a snapshot with these numbers of nodes and edges, and the start of the
    list of nodes."""
    head = {"snapshot": {"meta": _META, "node_count": nodes, "edge_count": edges, "trace_function_count": 0}}
    out.write(json.dumps(head, separators=(",", ":"))[:-1].encode() + b',\n"nodes":[')


def write_edges_start(out: BinaryIO) -> None:
    """Write the end of the list of nodes, and the start of the list of edges."""
    out.write(b'],\n"edges":[')


def write_end(out: BinaryIO, texts: Iterable[str]) -> None:
    """Write the end of the list of edges, and the table of texts."""
    out.write(b'],\n"trace_function_infos":[],\n"trace_tree":[],\n"samples":[],\n"locations":[],\n"strings":[')
    every = list(texts)
    for first in range(0, len(every), _SLICE):
        some = json.dumps(every[first : first + _SLICE], separators=(",\n", ":"))[1:-1]
        out.write((b",\n" if first else b"") + some.encode())
    out.write(b"]}\n")


def join_numbers(numbers: Sequence[int]) -> bytes:
    """Return numbers in the form of JSON, without brackets."""
    # The text of a list is the fastest way to format numbers. Spaces are allowed in JSON.
    return str(list(numbers))[1:-1].encode()


def join_elements(nodes: Iterable[int]) -> bytes:
    """Return edges to these nodes, as elements of an array, in the form of JSON, without
    brackets."""
    return join_numbers([number for at, node in enumerate(nodes) for number in (ELEMENT, at, NODE_FIELDS * node)])
