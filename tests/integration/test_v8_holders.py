"""`verdict` names what retains the objects of V8's heap. `path`, `refs`, `whatis` and `runtime` agree."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import debuggers
import nodes
import pytest
import truth

import cores
import findleaks
from findleaks.audit.managed_holder import find_managed_path
from findleaks.runtimes.node import addon_variables
from findleaks.runtimes.node.addon_variables import choose_variables
from findleaks.runtimes.node.handle_owners import HandleOwners
from findleaks.runtimes.node.instance import Node
from findleaks.runtimes.v8.object_graph import V8Graph

PROGRAM = truth.PROGRAMS / "v8_holders.js"
TOTAL = 30_000
SCREEN = 30  # lines
KINDS = ("listeners", "map", "static", "global", "exports", "promises", "timers", "chain", "napi")
VERSIONS = ("12.22.12", "14.21.3", "16.20.2", "18.20.8", "20.20.0", "22.12.0", nodes.NEWEST)
ALL = [
    pytest.param(version, kind, marks=[] if version == nodes.NEWEST and kind == "listeners" else pytest.mark.matrix)
    for version in VERSIONS
    for kind in KINDS
]


def addon(folder: Path) -> Path:
    """Compile the addon that leaks. Node records its path as a URL, in which some characters are escaped."""
    made = folder / "leak 1%20\u00e9.node"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", made, truth.PROGRAMS / "v8_references.c"], check=True)
    return made


def answer(*words: str) -> dict[str, Any]:
    """Return the JSON that the command line prints."""
    (line,) = debuggers.objects(debuggers.findleaks(*words, "--json"))
    found: dict[str, Any] = json.loads(line)
    return found


def is_named(holder: str, text: str) -> bool:
    """Return whether a text names the variable, alone or as one of several that retain the objects only together. Functions may keep
    their context alive, which has all variables."""
    _, _, name = holder.rpartition(" ")
    return holder in text or re.search(rf"variables [^()]*\b{re.escape(name)}\b[^()]*\([^()]*\) together retain", text) is not None


@pytest.mark.platform("x86-64", "Node: what retains JavaScript objects", of="12 to 24")
@pytest.mark.parametrize(("version", "kind"), ALL)
def test_the_holder_is_on_the_first_screen(tmp_path: Path, version: str, kind: str) -> None:
    file = addon(tmp_path)
    command = [nodes.get(version), "--expose-gc", *nodes.STEADY, str(PROGRAM), kind, str(TOTAL), str(file)]
    with cores.Running(command, tmp_path) as running:
        made = json.loads(running.output.splitlines()[0])
        pid = str(running.pid)
        screen = debuggers.findleaks("verdict", "--pid", pid).splitlines()
        verdict = answer("verdict", "--pid", pid)
        (found,) = [one for one in verdict["findings"] if one["finding"] == "retained-objects"]
        place = next(word for word in found["next"] if word.startswith("path ")).split()[1]
        path, identified = answer("path", place, "--pid", pid), answer("whatis", place, "--pid", pid)
        (runtime,) = answer("runtime", "--only", "node", "--pid", pid)["runtimes"]
        core = str(running.kernel_core())
    # The name of the holder, and its objects by constructor or function.
    titles = " ".join(line.strip() for line in screen[:SCREEN])
    assert is_named(made["holder"], titles)
    assert f"{TOTAL:,} " in titles and made["content"] in titles
    assert found["evidence"]["retained_objects"] >= 4 * TOTAL
    assert found["evidence"]["retained_bytes"] >= 100 * TOTAL
    types = {row["name"]: row for row in runtime["types"]}
    assert types["Session"]["objects"] == TOTAL
    assert types["Session"]["own"].get("garbage_objects", 0) == 0
    assert 2 * types["Session"]["bytes"] < types["Session"]["retained_bytes"] <= found["evidence"]["retained_bytes"]
    # The object that `verdict` names is live, and each step refers to the next one.
    assert identified["answers"][0]["object"]["live"] is True
    steps = path["path"]
    assert steps[-1]["value"] == place
    if kind == "napi":
        assert found["evidence"]["handles"] == TOTAL
        # The reference of the last object is also in the variable `newest`.
        assert (found["evidence"]["variable"], found["evidence"]["handles_in_variable"]) == ("all", TOTAL - 1)
        assert f"The addon's variable all refers to {TOTAL - 1:,} of them, directly or indirectly." in titles
        assert steps[0]["in"]["text"] == f"Node-API reference of {file}"
    # The core has the same objects.
    (again,) = [one for one in answer("verdict", core)["findings"] if one["finding"] == "retained-objects"]
    assert {**again["evidence"], "address": 0} == {**found["evidence"], "address": 0}


@pytest.mark.parametrize("version", [nodes.NEWEST, *(pytest.param(one, marks=pytest.mark.matrix) for one in VERSIONS[:-1])])
@pytest.mark.parametrize("stripped", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_variables_of_an_addon(tmp_path: Path, version: str, stripped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """findleaks names the variable in which the addon keeps a reference, or none if the addon does not keep it. The addon's variables
    `environment` and `isolate` lead to Node's lists of all references, and `newest` refers to the last reference."""
    file, each = addon(tmp_path), 2000
    symbols = subprocess.run(["nm", "--defined-only", file], check=True, capture_output=True, text=True).stdout
    places = {name: int(address, 16) for address, _, name in map(str.split, symbols.splitlines())}
    names = {name: f"at {file.name}+{place:#x}" if stripped else name for name, place in places.items()}
    if stripped:
        subprocess.run(["strip", file], check=True)
    command = [nodes.get(version), "--expose-gc", *nodes.STEADY, str(PROGRAM), "addon", str(each), str(file)]
    with cores.Running(command, tmp_path) as running, findleaks.attach(running.pid) as process:
        (node,) = (one for one in process._session.runtimes if isinstance(one, Node))
        assert node._javascript is not None and node._javascript.graph is not None
        roots = node._javascript.graph._reach.roots
        shown = Counter(roots._name_handle(place) for place, _ in roots.global_handles())
        handles = [place for place, _ in roots.global_handles()]
        owners = HandleOwners(node._target, node._engine, node._directory, handles, [one.address for one in node._isolates])
        chosen = Counter(choose_variables(owners._reached[str(file)]).values())
        (group, *_) = owners.groups
        # If the scan reaches too many words, only the words of the variables themselves count.
        monkeypatch.setattr(addon_variables, "_MOST_WORDS", 64)
        limited = HandleOwners(node._target, node._engine, node._directory, handles, [one.address for one in node._isolates])
        direct = Counter(choose_variables(limited._reached[str(file)]).values())
    assert direct[names["all"]] == 0 == direct[names["cache"]] and (stripped or direct[names["table"]] == each)
    assert len(group.places) == 4 * each and group.in_variable == each
    assert (chosen.pop(names["all"]), chosen.pop(names["cache"]), chosen.pop(names["newest"])) == (each, each, 1)
    # Without symbols, findleaks treats each word of the array as a variable.
    assert sum(chosen.values()) == each and (stripped or chosen.keys() == {names["table"]})
    reference = f"Node-API reference of {file}"
    assert shown[reference] == 3 * each - 1 and shown[f"{reference} in variable {names['newest']}"] == 1
    assert stripped or shown[f"{reference} in variable {names['table']}"] == each
    assert shown[f"global handle of variable {names['global']} of {file}"] == 1


@pytest.mark.parametrize("version", [nodes.NEWEST, *(pytest.param(one, marks=pytest.mark.matrix) for one in VERSIONS[:-1])])
@pytest.mark.parametrize(
    "kind", ["wrapped", *(pytest.param(one, marks=pytest.mark.matrix) for one in ("buffers", "external", "data", "bare"))]
)
def test_the_holder_of_native_blocks(tmp_path: Path, version: str, kind: str) -> None:
    """JavaScript objects own the native blocks. Each block has 20,008 usable bytes. The addon also has global handles in a list, and
    thread-safe functions that it never releases: findleaks distinguishes the addon's handles from Node's handles."""
    file, each = addon(tmp_path), 2000
    command = [nodes.get(version), "--expose-gc", *nodes.STEADY, str(PROGRAM), kind, str(each), str(file)]
    with cores.Running(command, tmp_path) as running:
        made = json.loads(running.output.splitlines()[0])
        with findleaks.attach(running.pid) as process:
            found = find_managed_path(process._session, 20_008, each)
            (node,) = (one for one in process._session.runtimes if isinstance(one, Node))
            graph = node.object_graph()
            assert isinstance(graph, V8Graph)
            groups = {one.group.name: one.group for one in graph.retaining_groups()}
            counts = {one.name: one.objects for one in node.types()}
        assert found is not None
        verdict = answer("verdict", "--pid", str(running.pid))["findings"][0]
    assert re.search(rf"{made['holder']} \({PROGRAM}\) → .*{made['content']}", found.path), found
    # Uninitialised buffers may contain old pointers to the blocks. Then another finding attributes the blocks to these buffers.
    if verdict["finding"] in ("held-by-many", "held-from-managed-heap"):
        assert f"One of them is reached by {verdict['evidence']['path']}" in verdict["cause"]
        assert made["content"] in verdict["evidence"]["path"] and any(word.startswith("path ") for word in verdict["next"])
    if kind == "external" and version not in BEFORE_FINALIZERS:
        assert counts[f"ArrayBuffer (memory of {file})"] == each
        assert f"{each:,} objects of ArrayBuffer (memory of {file}) retain 3" in verdict["cause"]
    if kind == "data":
        assert (
            re.search(rf"objects of Node-API reference (to \w+ )?\({re.escape(str(file))}\) retain 3", verdict["cause"])
            and made["holder"] in verdict["cause"]
        )
    if kind == "bare" and version not in BEFORE_WRAPPERS:
        assert counts[f"Node-API external ({file})"] == each
        assert f"{each:,} objects of Node-API external ({file}) retain 3" in verdict["cause"] and made["holder"] in verdict["cause"]
    if kind == "wrapped":
        assert f"objects of Node-API reference to Session ({file}) retain 3" in verdict["cause"] and made["holder"] in verdict["cause"]
        assert counts[f"Node-API thread-safe function ({file})"] == each
        # The addon's own functions have few references.
        assert each <= counts[f"Node-API reference to Session ({file})"] < each + 100
        functions, watched = groups[f"global handles of Node-API thread-safe functions of {file}"], groups[f"global handles of {file}"]
        assert len(functions.places) in (2 * each, 3 * each)
        assert (len(watched.places), watched.variable, watched.in_variable) == (each, "watchers", each)


@pytest.mark.matrix
@pytest.mark.parametrize("version", VERSIONS)
def test_holders_with_one_name(tmp_path: Path, version: str) -> None:
    """Node has a list of timers for each duration. `verdict` prints the sum of the bytes that these lists retain."""
    command = [nodes.get(version), "--expose-gc", *nodes.STEADY, str(PROGRAM), "intervals", "120000"]
    with cores.Running(command, tmp_path) as running:
        findings = answer("verdict", "--pid", str(running.pid))["findings"]
    (found,) = [one for one in findings if one["finding"] == "large-v8-heap"]
    (amount,) = re.findall(r"Retained by: variable timerListMap \([^)]*\): ([0-9]+) MiB in 8 objects\.", found["cause"])
    assert int(amount) << 20 > 0.7 * found["evidence"]["bytes"]


SCRIPT = re.escape(str(truth.PROGRAMS / "v8_content.js"))
BEFORE_FINALIZERS = ("12.22.12", "14.21.3")
"""Versions in which memory of an ArrayBuffer does not have the function of the addon that frees it."""

BEFORE_WRAPPERS = ("12.22.12", "14.21.3", "16.20.2", "18.20.8")
"""In these versions, an External contains the address of the data and has no ExternalWrapper."""

CONTENT = [
    ("buffers", 3000, r"3,0\d\d objects of ArrayBuffer .* one of them is reached by .*global variable audit → .* → Buffer → ArrayBuffer\."),
    ("slices", 2000, r"Buffers and other views use 2\d\d KiB of the 38 MiB of their ArrayBuffers"),
    pytest.param("once", 40_000, rf"0,000 closures, [^,]*(onceWrapper|anonymous \({SCRIPT}:\d+)", marks=pytest.mark.matrix),
    pytest.param("calls", 40_000, rf"40,000 Generator of handle \({SCRIPT}:\d+\)", marks=pytest.mark.matrix),
    pytest.param("named", 200_000, r"200,000 Generator[,.]", marks=pytest.mark.matrix),
    pytest.param("strings", 20_000, "20,000 parts of strings, which keep the whole strings", marks=pytest.mark.matrix),
    pytest.param("contexts", 100, r"100 contexts of scripts \(vm\.createContext, ShadowRealm\)", marks=pytest.mark.matrix),
    pytest.param("pairs", 600_000, r"global variable audit retains .* It retains 600,000 Outer, 600,000 Inner", marks=pytest.mark.matrix),
]


@pytest.mark.parametrize("version", [pytest.param(one, marks=[] if one == nodes.NEWEST else pytest.mark.matrix) for one in VERSIONS])
def test_the_line_of_a_closure_with_a_computed_name(tmp_path: Path, version: str) -> None:
    program = truth.PROGRAMS / "v8_content.js"
    command = [nodes.get(version), "--expose-gc", *nodes.STEADY, str(program), "closures", "200000"]
    with cores.Running(command, tmp_path) as running:
        found = answer("verdict", "--pid", str(running.pid))["findings"]
    (line,) = [at for at, text in enumerate(program.read_text().splitlines(), 1) if "closures: n" in text]
    assert any(f"anonymous ({program}:{line})" in str(one["cause"]) for one in found), found


@pytest.mark.parametrize(("kind", "count", "sentence"), CONTENT)
def test_the_content_of_a_global_variable(tmp_path: Path, kind: str, count: int, sentence: str) -> None:
    command = [nodes.get(nodes.NEWEST), "--expose-gc", *nodes.STEADY, str(truth.PROGRAMS / "v8_content.js"), kind, str(count)]
    with cores.Running(command, tmp_path) as running:
        found = answer("verdict", "--pid", str(running.pid))["findings"]
    assert any(re.search(sentence, f"{one['text']} {one['cause']} {one['try']}") for one in found), found
