"""The types that findleaks prints can be pasted into GDB's `print *(T *) address` and LLDB's `memory read -t "T" -c n address`."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import commandline
import pytest
from debuggers import gdb, lldb

import cores

PROGRAMS = Path(__file__).resolve().parent.parent / "programs"
FOREIGN = re.compile(r"^\(|^\*const |^alloc::boxed::Box<.*\[|dyn ")
"""Types of Rust that no C++ expression can name: tuples, `*const T`, arrays of boxes, and trait objects."""
NODES = re.compile(r"^std::|counters of ")
"""Types of the standard library, such as nodes of containers. LLDB does not find some of them by name."""


def memory_read(name: str, address: str) -> str:
    """Return the LLDB command that prints a block. For an array, it contains the type and the number of the elements."""
    found = re.match(r"(.*?) ?\[(\d+)\]$", name)
    kind, count = found.groups() if found else (name, "1")
    return f'memory read --force -t "{kind}" -c {count} {address}'


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("source", "compiler", "language", "least"),
    [
        ("typed_truth.c", ["gcc"], "c", 20),
        ("typed_truth.cpp", ["g++"], "c++", 12),
        ("typed_shapes.cpp", ["g++"], "c++", 5),
        ("typed_truth.rs", ["rustc", "--edition=2021"], "c++", 15),
    ],
)
def test_types_are_pasted(source: str, compiler: list[str], language: str, least: int, tmp_path: Path) -> None:
    subprocess.run([*compiler, "-g", "-o", tmp_path / "typed", PROGRAMS / source], check=True)
    with cores.Running([str(tmp_path / "typed"), "300", "3"], tmp_path / "run") as running:
        words = ["blocks", "--json", "--limit", "0", "--pid", str(running.pid)]
        done = commandline.run(words, {**os.environ, "XDG_CACHE_HOME": str(tmp_path)})
        rows = [row for row in map(json.loads, done.stdout.splitlines()) if row.get("type_from") in ("debug-info", "inferred")]
        types = {row["type"]: row["address"] for row in rows if not FOREIGN.search(row["type"])}
        assert len(types) >= least
        pasted = [f"print *({name} *) {address}" for name, address in types.items()]
        output = gdb([f"set language {language}", *pasted], "-p", str(running.pid))
        assert output.count("\n$") == len(pasted), output
        pasted = {address: memory_read(name, address) for name, address in types.items() if not NODES.search(name)}
        output = lldb([*pasted.values()], "-p", str(running.pid))
        assert len(pasted) >= least // 2
        assert not [command for address, command in pasted.items() if f") {address} = " not in output], output
