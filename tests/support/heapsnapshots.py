"""Read heap snapshots that V8 writes, and add up objects by class as Chrome DevTools does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

FIXED = {"hidden": "(system)", "code": "(compiled code)"}


class Counts(NamedTuple):
    """Number of objects and their own bytes, by class; and the bytes of arrays that belong to a single object of the class."""

    objects: Mapping[str, int]
    bytes: Mapping[str, int]
    arrays: Mapping[str, int]


def read(path: Path) -> Counts:
    """Return the objects of a snapshot. Nodes that are not objects of V8's heap are left out: roots, and native memory."""
    snapshot = json.loads(path.read_text())
    meta, strings, nodes = snapshot["snapshot"]["meta"], snapshot["strings"], snapshot["nodes"]
    fields, kinds = meta["node_fields"], meta["node_types"][0]
    kind_at, name_at, size_at = (fields.index(name) for name in ("type", "name", "self_size"))
    objects: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    names: dict[int, str] = {}
    for at in range(0, len(nodes), len(fields)):
        kind = kinds[nodes[at + kind_at]]
        if kind not in ("synthetic", "native"):
            names[at] = strings[nodes[at + name_at]] if kind == "object" else FIXED.get(kind, f"({kind})")
            objects[names[at]] += 1
            sizes[names[at]] += nodes[at + size_at]
    arrays: Counter[str] = Counter()
    references = list(_references(snapshot, strings))
    counts = Counter(to for _, to in references)
    for at, to in references:
        if counts[to] == 1 and at in names:
            arrays[names[at]] += nodes[to + size_at]
    return Counts(objects, sizes, arrays)


def _references(snapshot: Mapping[str, Any], strings: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield (object, array), as indices in the nodes, for properties, elements, and tables of maps and sets."""
    meta, nodes, edges = snapshot["snapshot"]["meta"], snapshot["nodes"], snapshot["edges"]
    width, count_at, edge = len(meta["node_fields"]), meta["node_fields"].index("edge_count"), meta["edge_fields"]
    internal = meta["edge_types"][0].index("internal")
    kind_at, name_at, to_at = (edge.index(name) for name in ("type", "name_or_index", "to_node"))
    place = 0
    for at in range(0, len(nodes), width):
        for _ in range(nodes[at + count_at]):
            if edges[place + kind_at] == internal and strings[edges[place + name_at]] in ("properties", "elements", "table"):
                yield at, edges[place + to_at]
            place += len(edge)
