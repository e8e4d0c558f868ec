"""The types that findleaks prints can be pasted into the debuggers' `print *(T *) address`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import commandline
import pytest
from debuggers import gdb, lldb

import cores

PROGRAMS = Path(__file__).resolve().parent.parent / "programs"


def is_pasted_in_lldb(name: str) -> bool:
    """LLDB's parser finds no templates by their names, and accepts a pointer to an array only as T (*)[n]."""
    return "<" not in name and not name.endswith("]")


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("source", "compiler", "language", "least"), [("typed_truth.c", "gcc", "c", 20), ("typed_truth.cpp", "g++", "c++", 12)]
)
def test_types_are_pasted(source: str, compiler: str, language: str, least: int, tmp_path: Path) -> None:
    subprocess.run([compiler, "-g", "-o", tmp_path / "typed", PROGRAMS / source], check=True)
    with cores.Running([str(tmp_path / "typed"), "300", "3"], tmp_path / "run") as running:
        words = ["blocks", "--json", "--limit", "0", "--pid", str(running.pid)]
        done = commandline.run(words, {**os.environ, "XDG_CACHE_HOME": str(tmp_path)})
        rows = [row for row in map(json.loads, done.stdout.splitlines()) if row.get("type_from") in ("debug-info", "inferred")]
        types = {row["type"]: row["address"] for row in rows}
        assert len(types) >= least
        pasted = [f"print *({name} *) {address}" for name, address in types.items()]
        output = gdb([f"set language {language}", *pasted], "-p", str(running.pid))
        assert output.count("\n$") == len(pasted), output
        pasted = [f"p *({name} *) {address}" for name, address in types.items() if is_pasted_in_lldb(name)]
        output = lldb(pasted, "-p", str(running.pid))
        assert len(pasted) >= 3
        assert "<user expression" not in output, output  # LLDB names each expression that it cannot parse in this way
