"""`scopes` on many versions of Node.js: leaks of a known number of handles, live, in each kind of core and in each front end."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nodes
import objdump
import pytest
import truth
from debuggers import findleaks, gdb, lldb, objects
from variants import mark_matrix_except

from cores import PATIENCE, Running
from findleaks.disasm.x86 import instructions
from findleaks.runtimes.v8.globals import MAKERS, STATS
from findleaks.runtimes.v8.layout import COUNT, CURRENT, ENTER, SEAL

BLOCK = 1022 * 8
CLOSED = 100_000
OBJECTS = 200_000
REQUESTS = 4_000
WITH_ADDONS = ("8.17.0", *nodes.WITH_WORKERS)


def versions(*names: str) -> list[Any]:
    """The newest version is always tested; the matrix tests the others."""
    return [name if name == nodes.NEWEST else pytest.param(name, marks=pytest.mark.matrix) for name in names]


def answer(lines: list[str]) -> dict[str, Any]:
    (line,) = lines
    made: dict[str, Any] = json.loads(line)
    return made


def live(pid: int) -> dict[str, Any]:
    return answer(objects(findleaks("scopes", "--json", "--pid", str(pid))))


def check_consistent(isolate: dict[str, Any]) -> None:
    """Check that every handle is in one scope and has one kind, and that the number of open scopes equals the counter of the isolate."""
    assert sum(scope["handles"] for scope in isolate["scopes"]) == isolate["handles"]
    assert sum(value["handles"] for value in isolate["values"]) == isolate["handles"]
    assert len(isolate["scopes"]) == isolate["level"]
    assert isolate["bytes"] == isolate["blocks"] * BLOCK
    assert isolate["problem"] is None


def check_every_picture(running: Running, program: str, check: Callable[[dict[str, Any]], object], some: bool = False) -> None:
    """Call `check` on the result, which must be the same live, in gcore's core and in the kernel's core, on the command line, in GDB and
    in LLDB. With `some`: only live and in the kernel's core, on the command line."""
    words = ["leaks scopes --json"]
    pid = str(running.pid)
    reported = {"live": findleaks("scopes", "--json", "--pid", pid)}
    if not some:
        reported |= {"live, gdb": gdb(words, "-p", pid), "live, lldb": lldb(words, "-p", pid)}
    for name, make in (("gcore", running.gcore), ("kernel", running.kernel_core))[some:]:
        core = str(make())
        reported[name] = findleaks("scopes", "--json", core)
        reported[f"{name}, gdb"] = gdb(words, program, core)
        reported[f"{name}, lldb"] = lldb(words, program, "-c", core)
    for name, output in reported.items():
        assert objects(output), f"{name}: {output}"
        found = answer(objects(output))
        check(found)
        assert found["isolates"] == answer(objects(reported["live"]))["isolates"], name
        front_end = name.partition(", ")
        assert found == answer(objects(reported[front_end[0]])), name


def closing(folder: Path, version: str, count: int) -> Running:
    return Running([nodes.get(version), str(truth.PROGRAMS / "node_closing.js"), str(count)], folder)


def test_handles_closed_outside_a_scope(tmp_path: Path) -> None:
    """Node 0.10.21 leaks one Undefined for each closed handle, in the scope of node::Start."""

    def check(found: dict[str, Any]) -> None:
        (isolate,) = found["isolates"]
        assert (isolate["handles"], isolate["blocks"], isolate["bytes"]) == (100_010, 98, 801_248)
        assert isolate["values"][0] == {"value": "undefined", "handles": 100_001, "objects": 1}
        (scope,) = isolate["scopes"]
        assert (scope["function"], scope["module"], scope["handles"]) == ("node::Start(int, char**)", "node", 100_010)
        assert scope["inside"][0] == "uv_run"
        check_consistent(isolate)
        assert found["warnings"] == []

    program = nodes.get("0.10.21")
    with closing(tmp_path, "0.10.21", CLOSED) as running:
        text = findleaks("scopes", "--pid", str(running.pid), COLUMNS="80")
        check_every_picture(running, program, check, some=True)
    assert max(len(line) for line in text.splitlines() if " -m findleaks " not in line) <= 80
    words = " ".join(text.split())
    assert "100,010 handles in 98 blocks, 782 KiB; scope level 1" in words
    assert "Too many handles in one scope: 100,010 handles belong to the scope opened by node::Start+" in words
    assert "99.99 % of all refer to undefined" in words


def test_mended(tmp_path: Path) -> None:
    """Node 0.10.22 opens a scope first, so no handle leaks."""
    with closing(tmp_path, "0.10.22", CLOSED) as running:
        (isolate,) = live(running.pid)["isolates"]
        text = findleaks("scopes", "--pid", str(running.pid))
    assert (isolate["handles"], isolate["blocks"]) == (10, 1)
    assert "No scope has 10,000 handles or more." in text
    check_consistent(isolate)


class Serving(Running):
    """Node's HTTP server after REQUESTS requests, each over its own connection."""

    def _wait(self) -> str:
        limit = time.monotonic() + PATIENCE
        while not (self.folder / "port").exists():
            assert time.monotonic() < limit
            time.sleep(0.02)
        port = int((self.folder / "port").read_text())
        askers = [threading.Thread(target=_ask, args=(number, port)) for number in range(4)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        return super()._wait()


def _ask(number: int, port: int) -> None:
    for count in range(REQUESTS // 4):
        # The client uses many addresses, because the number of ports is limited, and a used port stays in TIME_WAIT for a minute.
        source = (f"127.0.{1 + number}.{1 + count % 200}", 0)
        with socket.create_connection(("127.0.0.1", port), PATIENCE, source) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            while connection.recv(4096):
                pass


def start_server(folder: Path, version: str) -> Running:
    return Serving([nodes.get(version), str(truth.PROGRAMS / "node_server.js"), str(REQUESTS)], folder)


AFTER_REQUESTS = {"0.10.21": REQUESTS + 10, "0.10.22": 10}


def after_requests(found: dict[str, Any], version: str) -> None:
    (isolate,) = found["isolates"]
    assert isolate["handles"] == AFTER_REQUESTS[version]
    assert isolate["blocks"] == -(-isolate["handles"] // 1022)
    assert isolate["scopes"][0]["function"] == "node::Start(int, char**)"
    check_consistent(isolate)


@pytest.mark.parametrize("version", mark_matrix_except(AFTER_REQUESTS.keys(), "0.10.21"))
def test_http_requests(version: str, tmp_path: Path) -> None:
    with start_server(tmp_path, version) as running:
        after_requests(live(running.pid), version)


@pytest.mark.matrix
@pytest.mark.parametrize("version", AFTER_REQUESTS)
def test_http_requests_in_every_picture(version: str, tmp_path: Path) -> None:
    with start_server(tmp_path, version) as running:
        check_every_picture(running, nodes.get(version), lambda found: after_requests(found, version))


def build_addon(folder: Path, name: str, addon: str) -> Path:
    output = folder / addon
    source = truth.PROGRAMS / name
    subprocess.run(["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", output, source], check=True)
    return output


@pytest.mark.platform("x86-64", "Node: stacks, scopes, V8's heap", of="18 to 24")
@pytest.mark.parametrize("version", versions(*nodes.VERSIONS))
def test_nested_callbacks(version: str, tmp_path: Path) -> None:
    """The number of handles equals the result of V8's own function. Scopes have the frames up to the outermost one."""
    addon = build_addon(tmp_path, "node_counts.c", "counts.node")
    with Running([nodes.get(version), str(truth.PROGRAMS / "node_nested.js"), str(addon)], tmp_path / "run") as running:
        found = live(running.pid)
        (isolate,) = found["isolates"]
        assert f"handles {isolate['handles']}\n" in running.output
    assert sum(scope["handles"] for scope in isolate["scopes"]) == isolate["handles"]
    assert found["warnings"] == []
    if version != "4.9.1":  # the level restarts in a sealed scope
        check_consistent(isolate)
    functions = [scope["function"] or "" for scope in isolate["scopes"]]
    assert functions[-1].startswith(("node::Start", "node::NodeMainInstance::Run"))
    assert isolate["globals"]["blocks"] >= 1
    assert 0 < isolate["globals"]["weak"] < isolate["globals"]["handles"]


@pytest.fixture(scope="module")
def addon(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the addon and the script that calls it."""
    folder = tmp_path_factory.mktemp("addon")
    build_addon(folder, "node_objects.c", "objects.node")
    shutil.copy(truth.PROGRAMS / "node_addon.js", folder)
    return folder


def calling(version: str, addon: Path, folder: Path, *words: str) -> Running:
    return Running([nodes.get(version), "--expose-gc", str(addon / "node_addon.js"), *words], folder)


def many_objects(found: dict[str, Any], version: str) -> None:
    """Check that one scope has most of the handles, and that the function that creates the objects runs in it."""
    each = 2 if version == "8.17.0" else 3  # handles that napi_create_object creates
    (isolate,) = found["isolates"]
    check_consistent(isolate)
    most = isolate["scopes"][0]
    assert each * OBJECTS <= most["handles"] <= each * OBJECTS + 2
    if version in ("22.12.0", "24.0.0"):
        assert most["frame"].startswith("generated code that calls v8impl::")
    else:
        assert most["frame"].startswith("v8::internal::Builtin_HandleApiCall+")
    assert "objects" in most["inside"]
    held = {value["value"]: value for value in isolate["values"]}
    assert held["js object"]["objects"] == OBJECTS + 1


@pytest.mark.matrix
@pytest.mark.parametrize("version", ["20.20.0", nodes.NEWEST])
def test_many_objects_in_every_picture(version: str, addon: Path, tmp_path: Path) -> None:
    with calling(version, addon, tmp_path, "objects", str(OBJECTS)) as running:
        check_every_picture(running, nodes.get(version), lambda found: many_objects(found, version))


@pytest.mark.parametrize("version", versions(*WITH_ADDONS))
def test_many_objects_in_one_callback(version: str, addon: Path, tmp_path: Path) -> None:
    with calling(version, addon, tmp_path, "objects", str(OBJECTS)) as running:
        found = live(running.pid)
        many_objects(found, version)
        # GDB's core omits code that V8 mapped a second time from its file. The newest version is tested above.
        makers = [running.kernel_core] if version == nodes.NEWEST else [running.gcore, running.kernel_core]
        for core in (make() for make in makers):
            assert answer(objects(findleaks("scopes", "--json", str(core))))["isolates"] == found["isolates"]
            core.unlink()


@pytest.mark.parametrize("version", versions(*WITH_ADDONS))
def test_scopes_on_the_heap(version: str, addon: Path, tmp_path: Path) -> None:
    with calling(version, addon, tmp_path, "scopes", "20000", "3") as running:
        (isolate,) = live(running.pid)["isolates"]
        opened = [line.split()[1] for line in running.output.splitlines() if line.startswith("scope ")]
    check_consistent(isolate)
    heap = [scope for scope in isolate["scopes"] if scope["heap"]]
    assert isolate["scopes"][:3] == heap
    assert [scope["address"] for scope in heap] == opened[::-1]
    assert {scope["handles"] for scope in heap} == {40_000 if version == "8.17.0" else 60_000}
    assert {scope["frame"] for scope in heap} == {"napi_open_handle_scope"}
    assert all("scopes" in scope["inside"] for scope in heap)


@pytest.mark.parametrize("version", versions(*WITH_ADDONS))
def test_references(version: str, addon: Path, tmp_path: Path) -> None:
    """If V8 reports a number of global handles, findleaks reports this number plus the handles created since."""
    with calling(version, addon, tmp_path, "references", "100000") as running:
        (isolate,) = live(running.pid)["isolates"]
        before = running.output.splitlines()[0].split()[1]
    check_consistent(isolate)
    assert isolate["handles"] < 1000
    handles = isolate["globals"]["handles"]
    if before == "undefined":
        assert 100_000 < handles < 100_256
    else:
        assert handles == 100_000 + int(before) // 32
    assert isolate["globals"]["blocks"] >= -(-handles // 256)


@pytest.mark.parametrize("version", versions(*nodes.WITH_WORKERS))
def test_workers(version: str, tmp_path: Path) -> None:
    """Each worker has its own isolate, with its own scopes."""
    with Running([nodes.get(version), str(truth.PROGRAMS / "node_workers.js"), "3"], tmp_path) as running:
        found = live(running.pid)
        core = answer(objects(findleaks("scopes", "--json", str(running.kernel_core()))))
    assert found["isolates"] == core["isolates"]
    assert len(found["isolates"]) == 4
    threads = [isolate["threads"] for isolate in found["isolates"]]
    assert all(len(one) == 1 for one in threads)
    assert len({one[0] for one in threads}) == 4
    roots = []
    for isolate in found["isolates"]:
        check_consistent(isolate)
        assert {scope["thread"] for scope in isolate["scopes"]} == set(isolate["threads"])
        roots.append(isolate["scopes"][-1]["function"])
    assert sum(name.startswith("node::worker::Worker::Run") for name in roots) == 3
    assert sum(name.startswith("node::NodeMainInstance::Run") for name in roots) == 1


@pytest.mark.matrix
def test_workers_in_every_picture(tmp_path: Path) -> None:
    program = nodes.get(nodes.NEWEST)
    with Running([program, str(truth.PROGRAMS / "node_workers.js"), "3"], tmp_path) as running:
        check_every_picture(running, program, lambda found: [check_consistent(isolate) for isolate in found["isolates"]])


def test_stripped(tmp_path: Path) -> None:
    """Node exports V8's functions for addons, so the result is the same without .symtab."""
    program = tmp_path / "node"
    shutil.copy(nodes.get("0.10.21"), program)
    subprocess.run(["strip", "--strip-all", program], check=True)
    with Running([str(program), str(truth.PROGRAMS / "node_closing.js"), "5000"], tmp_path / "run") as running:
        (isolate,) = live(running.pid)["isolates"]
    assert (isolate["handles"], isolate["blocks"]) == (5010, 5)
    assert isolate["scopes"][0]["function"] == "node::Start(int, char**)"
    check_consistent(isolate)


@pytest.mark.matrix
def test_the_newest_stripped(addon: Path, tmp_path: Path) -> None:
    """Functions that are not exported have no names, but all handles and their scopes are found."""
    program = tmp_path / "node"
    shutil.copy(nodes.get(nodes.NEWEST), program)
    subprocess.run(["strip", "--strip-all", program], check=True)
    with Running([str(program), "--expose-gc", str(addon / "node_addon.js"), "objects", "20000"], tmp_path / "run") as running:
        (isolate,) = live(running.pid)["isolates"]
    check_consistent(isolate)
    most = isolate["scopes"][0]
    assert 60_000 <= most["handles"] <= 60_002
    assert most["frame"] == "generated code that calls objects"
    assert isolate["scopes"][-1]["function"].startswith("node::NodeMainInstance::Run")


def test_no_v8(tmp_path: Path) -> None:
    with Running([sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(600)"], tmp_path) as running:
        text = findleaks("scopes", "--pid", str(running.pid))
        assert live(running.pid)["isolates"] == []
    assert text == "no handle scopes can be read: no readable loaded file contains V8\n"


def test_many_keys(tmp_path: Path) -> None:
    """If the key of thread-specific data is large, the data is in a separate block."""
    command = [nodes.get("0.10.21"), str(truth.PROGRAMS / "node_closing.js"), "5000"]
    with Running(command, tmp_path / "run", nodes.late_key(tmp_path)) as running:
        (isolate,) = live(running.pid)["isolates"]
    assert isolate["handles"] == 5010


READ = (*COUNT, *ENTER, *CURRENT, *SEAL, *STATS, *MAKERS)
"""The functions from which offsets are derived."""


@pytest.mark.parametrize("version", versions(*nodes.VERSIONS))
def test_the_decoder_on_the_code_that_offsets_are_taken_from(version: str) -> None:
    program = nodes.get(version)
    listed = subprocess.run(["nm", "-S", program], capture_output=True, text=True, check=True).stdout
    places = {words[3]: (int(words[0], 16), int(words[1], 16)) for words in map(str.split, listed.splitlines()) if len(words) == 4}
    there = [places[name] for name in READ if name in places]
    assert len(there) >= 4
    for start, size in there:
        found, _ = objdump.disassemble(program, f"--start-address={start}", f"--stop-address={start + size}")
        code = b"".join(found[address][0] for address in sorted(found))
        seen, _, _ = objdump.compare_decoder(instructions(code, start), found)
        assert seen == len(found)
