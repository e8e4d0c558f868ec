"""Words of earlier blocks in buffers of files do not keep blocks alive."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import building
import pytest
import truth
from debuggers import findleaks, gdb, objects

import cores

COUNT = 5_000
FEW = 50
"""Blocks to which stale words on the stack or in registers may refer."""

program = building.fixture("stdio_buffer.c", "-O1")


def test_leaked_blocks_are_found(program: Path, tmp_path: Path) -> None:
    with cores.Running([str(program), str(COUNT)], tmp_path) as running:
        live = json.loads(findleaks("find", "--json", "--pid", str(running.pid)))
        core = running.kernel_core()
    for found in (live, json.loads(findleaks("find", "--json", str(core)))):
        assert COUNT - FEW <= found["totals"]["definite"]["blocks"] <= COUNT
    example = live["groups"][0]["examples"][2]  # the words of the first two blocks were overwritten
    references = json.loads(findleaks("refs", example, "--json", str(core)))["references"]
    assert references and not any(one["live"] for one in references)


@pytest.mark.matrix
def test_in_a_debugger(program: Path, tmp_path: Path) -> None:
    with cores.Running([str(program), str(COUNT)], tmp_path) as running:
        core = running.kernel_core()
    (found,) = map(json.loads, objects(gdb(["leaks find --json"], str(program), str(core))))
    assert COUNT - FEW <= found["totals"]["definite"]["blocks"] <= COUNT


@pytest.mark.parametrize("kind", ["output", "input"])
def test_buffers_of_rust(kind: str, tmp_path: Path) -> None:
    """The address of each leaked box remains in the buffer, because Rust does not initialize it."""
    rustc, program = shutil.which("rustc"), tmp_path / "program"
    assert rustc is not None, "rustc comes with cargo: apt-get install cargo"
    subprocess.run([rustc, "--edition=2021", "-O", str(truth.PROGRAMS / "rust_stdio.rs"), "-o", str(program)], check=True)
    with cores.Running([str(program), kind], tmp_path / "run") as running:
        lost = int(running.output.split()[1])
        found = json.loads(findleaks("find", "--json", "--pid", str(running.pid)))
    assert lost - 2 <= found["totals"]["definite"]["blocks"] <= lost  # stale words may refer to a few of them
