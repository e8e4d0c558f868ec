"""Objects of V8's heap by constructor equal those in the snapshot that V8 writes at the same stop, and those that the program created."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import debuggers
import heapsnapshots
import memlab
import nodes
import pytest
import truth
from nodespaces import RUNTIME

import cores

PROGRAM = truth.PROGRAMS / "v8_objects.js"
VERSIONS = ("12.22.12", "14.21.3", "16.20.2", "18.20.8", "20.20.0", "22.12.0", nodes.NEWEST)
OTHERS = ("Map", "Set", "WeakMap", "Promise", "Generator", "Date", "(closure)", "(regexp)", "Error", "Uint8Array", "Float64Array")
"""Names of other objects that the program creates, and whose numbers do not change when a snapshot is written."""

LATER = 16
"""V8 allocates up to this number of objects of a class after it has counted them, or keeps this much garbage."""

LOST = 0.02
"""Maximum number of garbage objects, as a fraction of the live ones: V8 has collected garbage, and the objects that the snapshot needed
are garbage."""

NATIVE = ("ArrayBuffer (its memory)", "node::")
"""Beginnings of the names of memory outside V8's heap."""

UNLIKE = {
    # A snapshot divides objects of these names by what refers to the object. Symbols that scripts cannot see are system objects in a
    # snapshot.
    "(system)", "(compiled code)", "(array)", "(object shape)", "(symbol)",
    # Objects that the embedder created, and prototypes of wrappers of primitive values.
    "global",
}  # fmt: skip
TEMPLATES = {"Map", "Registry", "BaseObject", "Object", "EventTarget"}
OLD = {
    # Up to V8 9.4, a snapshot gives objects of a subclass of Map the name Map, and uses the names of the embedder's templates.
    "16.20.2": TEMPLATES,
    "14.21.3": TEMPLATES,
    # V8 7.8 has no constants for the types of maps, sets, and objects of async functions.
    "12.22.12": {*TEMPLATES, "Generator"},
}


WITH_ARRAYS = ("Map", "Set", "Registry")
"""Names of objects that each have an array. V8 7.8 does not report these arrays."""


class Found(NamedTuple):
    """Live objects, their bytes, bytes of arrays, and the objects and bytes of garbage."""

    live: int
    live_bytes: int
    arrays: int
    garbage: int
    garbage_bytes: int

    def whole(self) -> tuple[int, int]:
        """Return the number of all objects, and their bytes."""
        return self.live + self.garbage, self.live_bytes + self.garbage_bytes


NOTHING = Found(0, 0, 0, 0, 0)


def get_name(version: str, name: str) -> str:
    """Return the name that this version of V8 gives an object of our snapshot. Oddballs have their own names only since Node 24."""
    return "system / Oddball" if version != nodes.NEWEST and name in ("null", "undefined", "true", "false") else name


def parse_counts(output: str) -> tuple[Mapping[str, Found], list[str]]:
    """Return the objects by name, and the warnings."""
    (line,) = debuggers.objects(output)
    answer = json.loads(line)
    (found,) = answer["runtimes"]
    types: list[Mapping[str, Any]] = [row for row in found["types"] if not row["name"].startswith(NATIVE)]
    keys = ("array_bytes", "garbage_objects", "garbage_bytes")
    rows = {row["name"]: Found(row["objects"], row["bytes"], *(row["own"].get(key, 0) for key in keys)) for row in types}
    return rows, list(answer["warnings"])


def reports(running: cores.Running, program: str, every: bool) -> dict[str, str]:
    """Return the results for the process and for the kernel's core. With `every`, also those for gcore's core, and those in GDB and
    LLDB."""
    pid, words = str(running.pid), [f"leaks {' '.join(RUNTIME)} --json"]
    reported = {"live": debuggers.findleaks(*RUNTIME, "--json", "--pid", pid)}
    if every:
        reported |= {"live, gdb": debuggers.gdb(words, "-p", pid), "live, lldb": debuggers.lldb(words, "-p", pid)}
        reported["gcore"] = debuggers.findleaks(*RUNTIME, "--json", str(running.gcore()))
    core = str(running.kernel_core())
    reported["kernel"] = debuggers.findleaks(*RUNTIME, "--json", core)
    if every:
        reported |= {"gdb": debuggers.gdb(words, program, core), "lldb": debuggers.lldb(words, program, "-c", core)}
    return reported


def compare_snapshots(own: heapsnapshots.Counts, truths: heapsnapshots.Counts, found: Mapping[str, Found], names: list[str]) -> None:
    """Check that our snapshot has the live objects of these names, with the bytes that V8's own snapshot gives them."""
    for name in names:
        assert (own.objects[name], own.bytes[name]) == (found[name].live, found[name].live_bytes), name
        assert (own.objects[name] + found[name].garbage, own.bytes[name] + found[name].garbage_bytes) == (
            truths.objects[name],
            truths.bytes[name],
        ), name
        # The edges to tables, elements and properties have the names that V8 gives them.
        assert name not in WITH_ARRAYS or own.arrays[name] == found[name].arrays, name


@pytest.mark.platform("x86-64", "Node: JavaScript objects", of="12 to 24")
@pytest.mark.parametrize(
    ("version", "every"),
    [(nodes.NEWEST, False), *(pytest.param(version, True, marks=pytest.mark.matrix) for version in VERSIONS)],
)
def test_objects_are_those_of_a_snapshot(tmp_path: Path, version: str, every: bool) -> None:
    snapshot = tmp_path / "heap.heapsnapshot"
    with cores.Running([nodes.get(version), *nodes.STEADY, str(PROGRAM), str(snapshot), "400"], tmp_path) as running:
        made = json.loads(running.output.splitlines()[0])
        own = tmp_path / "own.heapsnapshot"
        debuggers.findleaks("runtime", "--only", "node", "--no-native", "-o", str(own), "--pid", str(running.pid))
        reported = reports(running, nodes.get(version), every)
    found, warnings = parse_counts(reported["live"])
    assert [warning for warning in warnings if "read" in warning] == []
    for name, output in reported.items():
        assert parse_counts(output)[0] == found, name
    truths = heapsnapshots.read(snapshot)
    # The prototype of a subclass is an object of the superclass: the prototype of Special is an Order.
    assert {name: found[name].live for name in made} == {**made, "Order": made["Order"] + 1}
    for name in (*made, *OTHERS):
        if name not in OLD.get(version, ()):
            # The call that writes the snapshot creates objects that are garbage after it has returned.
            assert found[name].whole() == (truths.objects[name], truths.bytes[name]), name
            assert found[name].garbage == 0 or name not in made, name
    live, garbage = sum(one.live for one in found.values()), sum(one.garbage for one in found.values())
    assert garbage < LOST * live
    for name in WITH_ARRAYS if version != "12.22.12" else ():
        if name not in OLD.get(version, ()):
            assert found[name].arrays == truths.arrays[name] > 10_000, name
    unlike = UNLIKE | OLD.get(version, set())
    if every:
        parsed, truth_parsed = memlab.parse(own), memlab.parse(snapshot)
        assert {name: parsed.counts[name] for name in made} == {name: truth_parsed.counts[name] for name in made}
        assert {name: parsed.sizes[name] for name in made} == {name: truth_parsed.sizes[name] for name in made}
        for name in made:
            expected = {key: value for key, value in truth_parsed.names[name].items() if key != "__proto__"}
            found_names = {key: get_name(version, value) for key, value in parsed.names.get(name, {}).items()}
            assert found_names == expected, name
    compare_snapshots(heapsnapshots.read(own), truths, found, [name for name in (*made, *OTHERS) if name not in OLD.get(version, ())])
    names = (set(found) | set(truths.objects)) - unlike
    assert len(names) > 80
    different = {name: (found.get(name, NOTHING).whole()[0], truths.objects[name]) for name in names}
    assert {name: both for name, both in different.items() if abs(both[0] - both[1]) > LATER} == {}
