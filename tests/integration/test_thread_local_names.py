"""`path`, `whatis` and `roots` name thread-local variables of C, including those of libraries that were loaded later."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import truth
from debuggers import ROOT, gdb, objects, run_cli

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


IN_A_NAMESPACE = """
import json, sys
from pathlib import Path
sys.path.append(sys.argv[1])
from cores import Running
from debuggers import findleaks, gdb, lldb, objects

numbers = Path("/proc/sys/kernel")
(numbers / "ns_last_pid").write_text(str(int((numbers / "pid_max").read_text()) - 2))
with Running(sys.argv[2:], Path("run").absolute()) as run:
    pid, address = str(run.pid), run.output.split()[0]
    line = f"leaks path {address} --json"
    print(*objects(findleaks("path", address, "--json", "--pid", pid)))
    print(*objects(gdb([line], "-p", pid)), *objects(lldb([line, "detach"], "-p", pid)), sep="\\n")
    print(pid, *Path(f"/proc/{pid}/task").iterdir())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="takes a pid namespace, which only root can make")
def test_ids_of_threads_that_begin_again(tmp_path: Path) -> None:
    """The main thread has the largest id of the kernel, and the other thread a small one. All front ends give threads the same numbers."""
    library, program = tmp_path / "lib.so", tmp_path / "program"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-DLIBRARY", SOURCE, "-o", library], check=True)
    subprocess.run(["gcc", "-O1", SOURCE, "-o", program, "-pthread", "-ldl"], check=True)
    words = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child", sys.executable, "-c", IN_A_NAMESPACE, ROOT / "tests/support"]
    done = subprocess.run([*words, program, library], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
    *answers, ids = done.stdout.splitlines()
    main, *tids = [int(word.rpartition("/")[2]) for word in ids.split()]
    assert len(tids) == 2 and min(tids) < main
    assert len(answers) == 3 and len(set(answers)) == 1, answers
    assert f"request_buffer (program, thread-local, thread 2 (tid {min(tids)}))" in answers[0]


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
