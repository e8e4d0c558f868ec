"""Lua: objects by type, garbage, the collector's count, and names of variables."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import real
import truth
from debuggers import gdb, lldb, objects, run_cli, run_json
from variants import mark_matrix_except

import cores
from findleaks.audit.containers.lists import find_link
from findleaks.audit.containers.reader import ContainerReader
from findleaks.runtimes.lua.layout import find_states
from findleaks.session import Session
from findleaks.target.core import open_core

VERSIONS = [pytest.param(version, marks=() if version == "5.4" else pytest.mark.matrix) for version in ("5.1", "5.2", "5.3", "5.4")]


def running(version: str, folder: Path, *words: str) -> cores.Running:
    return cores.Running([real.executable(f"lua{version}"), str(truth.PROGRAMS / "objects.lua"), *words], folder, stdin=-1)


def check_garbage(where: str, *more: str) -> None:
    """Check that 150 pairs of orders are garbage, and that nothing is leaked. Stale words of C functions may refer to a few pairs."""
    done = run_cli("find", "--json", where, *more)
    answer = json.loads(done.stdout)
    assert answer["trusted"] and done.returncode == 0
    (group,) = [one for one in answer["groups"] if one["type"] == "Order"]
    assert (group["kind"], group["runtime"], group["garbage"]) == ("definite", "Lua", True) and 140 < group["blocks"] <= 150
    assert {one["type"] for one in answer["groups"] if one["kind"] == "definite"} <= {"Order", "string"}
    assert all(one["garbage"] for one in answer["groups"] if one["kind"] == "definite")


@pytest.mark.parametrize("version", VERSIONS)
def test_objects(version: str, tmp_path: Path) -> None:
    with running(version, tmp_path / "run", "drop") as made:
        where = ["--pid", str(made.pid)]
        check_garbage(*where)
        (lua,) = run_json("runtime", "--limit", "0", *where)["runtimes"]
        roots = run_json("roots", "--limit", "20", *where)["roots"]
        kept = json.loads(run_cli("blocks", "--json", "--type", "Point", "--limit", "1", *where).stdout.splitlines()[0])
        path = run_cli("path", kept["address"], *where).stdout
    types = {row["name"]: row["objects"] for row in lua["types"]}
    assert (types["Order"], types["Point"]) == (600, 200) and lua["version"] == version
    (closures,) = [count for name, count in types.items() if name.startswith("function at programs/objects.lua:") and count > 1]
    (bytes_,) = re.findall(r"bytes (\d+)", made.output)
    assert closures == 50 and 0 <= lua["counters"]['collectgarbage("count")'] - int(bytes_) < 1024
    named = {row["name"].replace(" (Lua variable)", ""): row["container"]["length"] for row in roots if row["container"]}
    wanted = {"local kept in programs/objects.lua": 300, "points": 200}
    assert {name: named.get(name) for name in wanted} == wanted
    # Lua hashes with the time as a seed. In some orders of the tables, `handlers` and other variables retain the main thread together.
    assert named.get("handlers", 50) == 50 and any("handlers" in row["name"] for row in roots)
    assert re.search(r"points \(Lua variable\).*; \[\d+\]", path, re.DOTALL)


@pytest.mark.parametrize("program", ["luajit", *(pytest.param(f"lua{one.values[0]}", marks=one.marks) for one in VERSIONS)])
def test_local_variables(program: str, tmp_path: Path) -> None:
    """Local variables of running functions and of a suspended coroutine have names. A variable whose scope has ended has none."""
    with cores.Running([real.executable(program), str(truth.PROGRAMS / "locals.lua")], tmp_path / "run", stdin=-1) as made:
        roots = run_json("roots", "--limit", "0", "--pid", str(made.pid))["roots"]
    named = {row["name"].split(" (")[0]: row["container"]["length"] for row in roots if row["container"] and "local" in row["name"]}
    wanted = {"sessions": 500, "queue": 400, "requests": 600}
    assert named == {f"local {name} in programs/locals.lua": length for name, length in wanted.items()}


@pytest.mark.parametrize("program", ["luajit", *(pytest.param(f"lua{one.values[0]}", marks=one.marks) for one in VERSIONS)])
def test_classes(program: str, tmp_path: Path) -> None:
    """Types have the names of local variables. Elements of one type are counted as one group, although the sizes of their blocks differ.
    What refers to suspended coroutines retains their local variables."""
    with cores.Running([real.executable(program), str(truth.PROGRAMS / "classes.lua")], tmp_path / "run", stdin=-1) as made:
        where = "--pid", str(made.pid)
        (lua,) = run_json("runtime", "--limit", "0", *where)["runtimes"]
        roots = {row["name"].split(" (")[0]: row for row in run_json("roots", "--limit", "0", "--depth", "3", *where)["roots"]}
    types = {row["name"]: row["objects"] for row in lua["types"]}
    assert (types["Session"], types["mt in programs/classes.lua"]) == (6000, 100)
    if program != "luajit":  # the blocks of LuaJIT have equal sizes
        (group,) = [child for child in roots["sessions"]["children"] if child["alike"]]
        assert group["alike"]["fields"] >= 5998 and "(Session)" in group["what"], group  # the stack may have stale words
    assert not any("local request" in name for name in roots)
    assert roots["local waiting in programs/classes.lua"]["retained_blocks"] >= 40 * 3


@pytest.mark.parametrize("program", ["luajit", *(pytest.param(f"lua{one.values[0]}", marks=one.marks) for one in VERSIONS)])
def test_registry(program: str, tmp_path: Path) -> None:
    """Objects to which only the registry refers are not attributed to coroutines, although coroutines refer to the Lua state. They are
    not attributed to a local variable that is nil, either."""
    with cores.Running([real.executable(program), str(truth.PROGRAMS / "registry.lua")], tmp_path / "run", stdin=-1) as made:
        roots = run_json("roots", "--limit", "0", "--pid", str(made.pid))["roots"]
    retained = {row["name"].split(" (")[0]: row["retained_bytes"] for row in roots}
    assert retained["registry"] > 0 and 0 < retained["waiting"] < 300 * 1000, retained
    assert "local kept in programs/registry.lua" not in retained


@pytest.mark.parametrize("program", mark_matrix_except(("luajit", "lua5.1", "lua5.2", "lua5.3", "lua5.4"), "lua5.1"))
def test_many_global_variables(program: str, tmp_path: Path) -> None:
    """If very many global variables have tables, `_G` retains these."""
    with cores.Running([real.executable(program), str(truth.PROGRAMS / "registry.lua"), "2000"], tmp_path / "run", stdin=-1) as made:
        roots = run_json("roots", "--limit", "0", "--pid", str(made.pid))["roots"]
    retained = {row["name"].split(" (")[0]: row["retained_blocks"] for row in roots}
    assert retained["_G"] > 2000 * 2 and not any(name.startswith("cache") for name in retained), retained


@pytest.mark.parametrize("version", VERSIONS[2:])
def test_finished_call(version: str, tmp_path: Path) -> None:
    """The record of a call that has finished does not refer to the code of its function."""
    script = str(truth.PROGRAMS / "finished_chunk.lua")
    with cores.Running([real.executable(f"lua{version}"), script], tmp_path / "run", stdin=-1) as made:
        answer = run_json("find", "--pid", str(made.pid))
    assert answer["totals"]["possible"]["blocks"] == 0 and all(one["garbage"] for one in answer["groups"])


@pytest.mark.parametrize("program", ["luajit", *(pytest.param(f"lua{one.values[0]}", marks=one.marks) for one in VERSIONS)])
def test_stale_words(program: str, tmp_path: Path) -> None:
    """Stale words in tables, functions and variables do not count as references. Stale words on the C stack may refer to a few dropped
    orders. Orders that the program keeps are never garbage."""
    with cores.Running([real.executable(program), str(truth.PROGRAMS / "stale.lua")], tmp_path / "run", stdin=-1) as made:
        answer = json.loads(run_cli("find", "--json", "--limit", "0", "--pid", str(made.pid)).stdout)
        (lua,) = run_json("runtime", "--limit", "0", "--pid", str(made.pid))["runtimes"]
    (orders,) = [row["objects"] for row in lua["types"] if row["name"] == "Order"]
    dropped = [one for one in answer["groups"] if one["type"] == "Order" and one["kind"] == "definite"]
    assert orders == 500 and 225 < sum(one["blocks"] for one in dropped) <= 250, answer["groups"]
    assert all(one["garbage"] for one in dropped)


@pytest.mark.parametrize("program", ["luajit", *(pytest.param(f"lua{one.values[0]}", marks=one.marks) for one in VERSIONS)])
def test_removed_keys(program: str, tmp_path: Path) -> None:
    """The keys of removed elements do not count as references. Stale words on the stacks may refer to a few keys."""
    with cores.Running([real.executable(program), str(truth.PROGRAMS / "dead_keys.lua")], tmp_path / "run", stdin=-1) as made:
        total = int(made.output.split()[0])
        (lua,) = run_json("runtime", "--limit", "0", "--pid", str(made.pid))["runtimes"]
    (keys,) = [row for row in lua["types"] if row["name"] == "Key"]
    assert keys["objects"] == total and total - 40 <= keys["leaked"]["blocks"] <= total


@pytest.mark.parametrize("debugger", [gdb, pytest.param(lldb, marks=pytest.mark.matrix)])
def test_core(debugger: Any, tmp_path: Path) -> None:
    """Debuggers give the same result. A damaged list of objects is reported, and the other objects are read."""
    with running("5.4", tmp_path / "run", "drop") as made:
        core = made.kernel_core()
    check_garbage(str(core))
    (text,) = objects(debugger(["leaks find --json"], "-c", str(core)))
    assert json.loads(text)["totals"] == run_json("find", str(core))["totals"]
    session = Session(open_core(str(core)))
    (state,) = find_states(session.target, session.directory.blocks)
    first = session.target.word(state.address + state.layout.lists[0])
    data = bytearray(core.read_bytes())
    place = data.find(session.target.read(first & -4096, 4096)) + first % 4096
    session.close()
    data[place : place + 8] = (0xDEAD0001).to_bytes(8, "little")
    core.write_bytes(data)
    assert any("list of objects is damaged" in warning for warning in run_json("runtime", str(core))["warnings"])


@pytest.mark.parametrize("program", mark_matrix_except(("luajit", "lua5.1", "lua5.2", "lua5.3", "lua5.4"), "luajit", "lua5.4"))
def test_a_process_without_garbage(program: str, tmp_path: Path) -> None:
    """After a collection, the program creates at most a few strings. The 22 words of the language are never garbage."""
    with cores.Running([real.executable(program), str(truth.PROGRAMS / "objects.lua")], tmp_path / "run", stdin=-1) as made:
        done = run_cli("find", "--json", "--pid", str(made.pid))
    answer = json.loads(done.stdout)
    assert answer["trusted"] and done.returncode == 0
    assert {one["type"] for one in answer["groups"]} <= {"string"} and sum(one["blocks"] for one in answer["groups"]) <= 10


@pytest.mark.parametrize("program", ["luajit", *(pytest.param(f"lua{one.values[0]}", marks=one.marks) for one in VERSIONS)])
def test_class_libraries_and_weak_tables(program: str, tmp_path: Path) -> None:
    """Classes that libraries define have names. What only weak tables refer to is garbage, except strings."""
    with cores.Running([real.executable(program), str(truth.PROGRAMS / "class_libraries.lua")], tmp_path / "run", stdin=-1) as made:
        where = "--pid", str(made.pid)
        (lua,) = run_json("runtime", "--limit", "0", *where)["runtimes"]
    types = {row["name"]: row["objects"] for row in lua["types"]}
    file = "programs/class_libraries.lua"
    methods = {f"c with first at {file}:22", f"c with second at {file}:23", f"object with get at {file}:35"}
    for name in ("Account", "Saving", "M.Node", "pool.Leaf", *methods):
        assert types.get(name) == 100, (name, types)
    leaked = {row["name"]: row["leaked"]["blocks"] for row in lua["types"] if row["name"] in ("Kept", "Dropped", "Short")}
    assert types["Kept"] == types["Dropped"] == 200 and leaked["Kept"] == 0 and 180 <= leaked["Dropped"] <= 200
    assert types["Short"] == 100 and 95 <= leaked["Short"] <= 100


COROUTINES = """
local waiting = {}
for i = 1, 300 do
  waiting[i] = coroutine.create(function(id) coroutine.yield(id) end)
  coroutine.resume(waiting[i], i)
end
io.write("ready\\n") io.flush() io.read()
"""


@pytest.mark.parametrize("program", mark_matrix_except(("luajit", "lua5.2", "lua5.3", "lua5.4"), "luajit", "lua5.2"))
def test_lists_of_the_collector_are_no_containers(program: str, tmp_path: Path) -> None:
    """The collector lists all threads. Such a list is not a linked list of the program: it would begin at each thread. Coroutines have
    the name of their function."""
    script = tmp_path / "wait.lua"
    script.write_text(COROUTINES)
    with cores.Running([real.executable(program), str(script)], tmp_path / "run", stdin=-1) as made:
        session = Session(open_core(str(made.kernel_core())))
    types = session.object_types
    assert types is not None
    thread, blocks, reader = (
        types.names.index(f"coroutine of {tmp_path.name}/wait.lua:4"),
        session.directory.blocks,
        ContainerReader(session),
    )
    threads = [blocks.address(index) for index, kind in enumerate(types.types) if kind == thread]
    places = [(address, reader.place(address)) for address in threads]
    assert len(threads) == 300
    assert not [address for address, place in places if place is None or find_link(reader, place, address) is not None]
    session.close()
