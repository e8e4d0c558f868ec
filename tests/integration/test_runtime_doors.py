"""`runtime` gives the same result for a kernel's core in GDB, in LLDB and on the command line. test_cpython_leaked.py also tests
CPython."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import debuggers
import mallocs_python
import nodes
import pytest
import truth

import cores


def python(folder: Path) -> AbstractContextManager[cores.Running]:
    one = mallocs_python.get("3.11")
    return cores.Running(one.command(str(truth.PROGRAMS / "cpython_objects.py"), "trace"), folder, one.environment())


def node(folder: Path) -> AbstractContextManager[cores.Running]:
    return cores.Running([nodes.get(nodes.NEWEST), *nodes.STEADY, str(truth.PROGRAMS / "node_holding.js")], folder)


@pytest.mark.matrix
@pytest.mark.parametrize("made", [python, node])
def test_front_ends_agree(tmp_path: Path, made: Callable[[Path], AbstractContextManager[cores.Running]]) -> None:
    with made(tmp_path) as running:
        program = str(Path(f"/proc/{running.pid}/exe").resolve())
        core = str(running.kernel_core())
    lines = [
        *debuggers.objects(debuggers.findleaks("runtime", "--json", core)),
        *debuggers.objects(debuggers.gdb(["leaks runtime --json"], program, core)),
        *debuggers.objects(debuggers.lldb(["leaks runtime --json"], program, "-c", core)),
    ]
    assert len(lines) == 3
    assert lines[0] == lines[1] == lines[2]
    (found,) = json.loads(lines[0])["runtimes"]
    assert found["types"] and found["parts"] and found["counters"]
