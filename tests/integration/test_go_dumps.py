"""Files with the objects of Go's heap and their references: heap snapshots and lines of JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import heapsnapshots
import pytest
from debuggers import findleaks
from go_programs import build

from cores import Running

COUNT = 2000


class Objects(NamedTuple):
    """The type of each object, its references by name, and the objects to which each root refers."""

    types: Mapping[int, str]
    references: Mapping[int, Mapping[str, int]]
    roots: Mapping[str, Sequence[int]]

    def tree(self, root: str, *names: str) -> Counter[str]:
        """Return the types of the objects that these references of a tree reach from a root."""
        seen, waiting = set[int](), list(self.roots[root])
        while waiting:
            one = waiting.pop()
            if one not in seen:
                seen.add(one)
                waiting += [self.references[one][name] for name in names if name in self.references[one]]
        return Counter(self.types[one] for one in seen)


def read_snapshot(path: Path) -> Objects:
    data = json.loads(path.read_text())
    meta, texts, nodes, edges = data["snapshot"]["meta"], data["strings"], data["nodes"], data["edges"]
    width, kinds, sorts = len(meta["node_fields"]), meta["node_types"][0], meta["edge_types"][0]
    assert (data["snapshot"]["node_count"], data["snapshot"]["edge_count"]) == (len(nodes) // width, len(edges) // 3)
    types, references, roots, place = dict[int, str](), dict[int, dict[str, int]](), dict[str, list[int]](), 0
    for at in range(0, len(nodes), width):
        kind, name, _, _, count = nodes[at : at + 5]
        found = [edges[place + 3 * number : place + 3 * number + 3] for number in range(count)]
        place += 3 * count
        if kinds[kind] == "synthetic":
            roots[texts[name]] = [to for _, _, to in found]
        else:
            types[at] = texts[name]
            references[at] = {f"[{label}]" if sorts[sort] == "element" else f".{texts[label]}": to for sort, label, to in found}
    assert place == len(edges)
    return Objects(types, references, roots)


def read_lines(path: Path) -> Objects:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    roots: dict[str, list[int]] = {}
    for row in rows:
        for name in row.get("roots", ()):
            roots.setdefault(name, []).append(int(row["address"], 16))
    references = {int(row["address"], 16): {one["name"]: int(one["to"], 16) for one in row["references"] if "name" in one} for row in rows}
    return Objects({int(row["address"], 16): row["type"] for row in rows}, references, roots)


@pytest.mark.platform("x86-64", "Go")
def test_objects_references_and_roots(tmp_path: Path) -> None:
    program, core = build(tmp_path, "", name="go_trees"), tmp_path / "core"
    with Running([str(program), str(COUNT)], tmp_path / "run") as run:
        printed = {name: int(count) for name, count in (line.split() for line in run.output.splitlines() if line.startswith("main."))}
        findleaks("snapshot", "--weight", "core", "-o", str(core), "--pid", str(run.pid))
    snapshot, lines = tmp_path / "go.heapsnapshot", tmp_path / "go.ndjson"
    page = json.loads(findleaks("runtime", "--json", "-o", str(snapshot), str(core)))
    assert page["written"]["format"] == "heapsnapshot"
    findleaks("runtime", "-o", str(lines), str(core))
    (runtime,) = page["runtimes"]
    listed = {one["name"]: one["objects"] for one in runtime["types"] if one["objects"]}
    counts = heapsnapshots.read(snapshot).objects
    assert {name: counts[name] for name in listed} == listed and sum(counts.values()) == sum(listed.values())
    assert {name: counts[name] for name in printed} == printed
    for objects in (read_snapshot(snapshot), read_lines(lines)):
        assert objects.tree("variable main.looped", ".left", ".right") == {"main.Looped": COUNT}
        assert objects.tree("variable main.list", ".next") == {"main.Listed": COUNT}
        assert objects.tree("variable main.wide", ".next") == {"main.Wide": COUNT}
    check_lines(lines)
    said = findleaks("runtime", "-o", str(tmp_path / "go.hprof"), str(core))
    assert "there is no Java heap to write; found: Go" in said


def check_lines(path: Path) -> None:
    """The root of the tree retains all its nodes and their names."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["address"] for row in rows] == sorted((row["address"] for row in rows), key=lambda one: int(one, 16))
    (first,) = [row for row in rows if row["type"] == "main.Looped" and "variable main.looped" in row.get("roots", ())]
    nodes = [row for row in rows if row["type"] == "main.Looped"]
    by_address = {row["address"]: row for row in rows}
    names = [by_address[one["to"]] for row in nodes for one in row["references"] if one.get("name") == ".name"]
    whole = sum(row["size"] for row in (*nodes, *{row["address"]: row for row in names}.values()))
    assert first["kind"] == "reachable" and 0 <= whole - first["retained"] <= whole // 50
