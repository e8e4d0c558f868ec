"""`path`, `whatis` and `roots` name thread-local variables of C, including those of libraries that were loaded later."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import truth
from debuggers import run_cli

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
