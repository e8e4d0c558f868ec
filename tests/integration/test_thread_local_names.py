"""`path`, `whatis` and `roots` name thread-local variables of C, including those of libraries that were loaded later."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import truth
from debuggers import gdb, objects, run_cli

from cores import Running

SOURCE = str(truth.PROGRAMS / "thread_local_names.c")


def names(rows: list[dict[str, Any]]) -> set[str]:
    """Return the names of rows and of all rows below them."""
    below = [row for one in rows for row in (*one.get("children", ()), *one.get("shared_children", ()))]
    return {str(row["name"]) for row in rows} | (names(below) if below else set())


def test_variables_are_named(tmp_path: Path) -> None:
    library, program = tmp_path / "lib.so", tmp_path / "program"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-DLIBRARY", SOURCE, "-o", library], check=True)
    subprocess.run(["gcc", "-O1", SOURCE, "-o", program, "-pthread", "-ldl"], check=True)
    with Running([str(program), str(library)], tmp_path / "run") as run:
        core = str(run.gcore())
        buffer, part, held = run.output.split()[:3]
    first = run_cli("path", buffer, core).stdout.splitlines()[0]
    assert "  request_buffer (program, thread-local, thread 2 (tid " in first
    assert "  scratch+0x10 (program, thread-local, thread 2 (tid " in run_cli("path", part, core).stdout.splitlines()[0]
    assert "byte block; lib_held+0x18\n" in run_cli("path", held, core).stdout
    found = names(json.loads(run_cli("roots", "--json", "--depth", "3", core).stdout)["roots"])
    assert {"request_buffer (program, thread-local, thread 2)", "lib_held+0x18 (lib.so)"} <= found


def test_the_caches_of_all_threads_are_one_finding(tmp_path: Path) -> None:
    program = tmp_path / "program"
    subprocess.run(["g++", "-O1", "-g", "-pthread", str(truth.PROGRAMS / "thread_caches.cpp"), "-o", program], check=True)
    with Running([str(program), "4"], tmp_path / "run") as run:
        core, count = str(run.gcore()), int(run.output.split()[0])
    found = json.loads(run_cli("verdict", "--json", core).stdout)["findings"][0]
    largest = found["evidence"]["largest_roots"][0]
    assert (largest["name"], largest["roots"], largest["blocks"]) == ("look_up(int)::cache", 4, count)
    assert " look_up(int)::cache (program, thread-local) of 4 threads retains " in found["text"], found
    assert f" in {count:,} blocks, " in found["text"]
    assert "Content: std::unordered_map or set, 4,000 nodes" in found["cause"]
    command = found["next"][0]
    assert command.startswith("roots 'look_up(int)::cache' --depth 4")
    rows = json.loads(objects(gdb([f"leaks {command} --json"], str(program), core))[0])["roots"]
    assert [row["retained_blocks"] for row in rows if row["retained_blocks"]] == [count // 4] * 4
