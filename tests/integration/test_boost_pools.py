"""Pools of Boost.Pool, chunk by chunk: chunks that the program uses, lost and freed, and arrays of chunks."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import building
import libraries_cpp
import pytest
import truth
from debuggers import gdb, lldb, objects, run_cli, run_json
from variants import mark_matrix_except

import cores


def compile_pools(folder: Path, release: str) -> Path:
    return building.compile_program(folder, "boost_pools.cpp", "-std=c++17", "-O1", libraries_cpp.boost_headers(release), "-pthread")


program = building.by(lambda folder: compile_pools(folder, "1.74"))
running = building.running()
POOLS = 6


def check(output: str, *where: str) -> None:
    """Compare the state and the kind of each chunk and each block of malloc with what the program printed."""
    by_address = {int(block["address"], 16): block for block in truth.ask(*where)[0]}
    truly = [(kind, int(address, 16)) for kind, address in re.findall(r"([a-z-]+) (0x\w+)", output)]
    counted: Counter[tuple[str, str]] = Counter()
    for kind, address in truly:
        block = by_address[address]
        assert (block["allocator"] == "boost::pool") != kind.startswith("block"), (kind, hex(address))
        counted[kind, block["kind"] if block["state"] == "in-use" else "free"] += 1
    wanted = Counter(kind for kind, _ in truly)
    assert counted["held", "reachable"] == wanted["held"] > 9500 and counted["freed", "free"] == wanted["freed"] == 500
    assert counted["block-held", "reachable"] == wanted["block-held"] > 1000
    # A lost chunk that follows another one in use may be part of an array.
    assert counted["lost", "possible"] + counted["lost", "definite"] == wanted["lost"] > 800
    assert counted["array", "possible"] + counted["array", "reachable"] == wanted["array"] == 200
    assert counted["block-lost", "definite"] + counted["block-lost", "possible"] == wanted["block-lost"] > 500
    assert counted["lost", "definite"] > 10 < counted["lost", "possible"] and counted["block-lost", "definite"] >= 500
    lost = {address for address, block in by_address.items() if block.get("kind") in truth.LOST}
    assert lost <= {address for kind, address in truly if kind.endswith("lost")}


def test_a_live_process(running: cores.Running) -> None:
    where = "--pid", str(running.pid)
    check(running.output, *where)
    answer = run_json("find", *where)
    (one,) = [each for each in answer["allocators"] if each["name"] == "boost::pool"]
    assert answer["trusted"] and one["pools"] == POOLS and one["reconciled"] and run_cli("verify", *where).returncode == 0


@pytest.mark.parametrize("release", mark_matrix_except(libraries_cpp.BOOST.keys(), "1.74"))
def test_a_core(release: str, tmp_path: Path) -> None:
    """A core of a stripped program."""
    made = compile_pools(tmp_path, release)
    subprocess.run(["strip", made], check=True)
    with cores.Running([str(made)], tmp_path / "run") as run:
        core = str(run.kernel_core())
    check(run.output, core)


@pytest.mark.parametrize("debugger", [gdb, pytest.param(lldb, marks=pytest.mark.matrix)])
def test_debuggers(running: cores.Running, debugger: Any) -> None:
    core = str(running.gcore())
    (text,) = objects(debugger(["leaks find --json"], "-c", core))
    assert json.loads(text)["totals"] == run_json("find", core)["totals"]


def test_names(running: cores.Running) -> None:
    rows = run_json("caches", "--by-arena", "--allocator", "boost::pool", "--pid", str(running.pid))["caches"]
    used = {row["arena"]: row["in_use"] for row in rows}
    assert used["pool rows"] == 1500 and used["pool arrays"] == 300
    assert {number for name, number in used.items() if "singleton_pool<Tag, 80u" in name} == {100}
