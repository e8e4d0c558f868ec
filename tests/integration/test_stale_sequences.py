"""Vectors, deques and maps whose heads are in blocks: words in used slots are references, and words in unused slots are not references."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import truth
from debuggers import gdb, lldb, objects, run_cli

import cores

LOST = {"definite", "indirect"}
CPP = ("g++", "-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", str(truth.PROGRAMS / "stale_sequences.cpp"))


def kinds(core: Path) -> dict[str, str]:
    """The kind of each block in use, by address."""
    lines = run_cli("blocks", "--json", "--limit", "0", str(core), check=True).stdout.splitlines()
    return {row["address"]: row["kind"] for row in map(json.loads, lines) if "address" in row}


def run(program: Path, folder: Path) -> tuple[dict[str, str], Path]:
    """Return what the program printed of its blocks ("lost" or "held" by address), and its core."""
    with cores.Running([str(program)], folder) as running:
        rows = [line.split() for line in running.output.splitlines() if line != "ready"]
        return {address: fate for fate, address in rows}, running.gcore()


def list_errors(blocks: dict[str, str], core: Path) -> dict[str, tuple[str, str]]:
    found = kinds(core)
    return {address: (fate, found[address]) for address, fate in blocks.items() if (found[address] in LOST) != (fate == "lost")}


@pytest.mark.platform("x86-64", "variables, containers and their owners")
def test_cpp(tmp_path: Path) -> None:
    program = tmp_path / "stale_sequences"
    subprocess.run([*CPP, "-o", str(program)], check=True)
    blocks, core = run(program, tmp_path / "run")
    assert Counter(blocks.values()) == {"lost": 647, "held": 868 + 1400}
    assert list_errors(blocks, core) == {}
    totals = json.loads(run_cli("find", "--json", str(core), check=True).stdout)["totals"]
    for other in (gdb(["leaks find --json"], str(program), str(core)), lldb(["leaks find --json"], str(program), "-c", str(core))):
        assert json.loads(objects(other)[0])["totals"] == totals
    # Without debug information, findleaks is certain only about deques. It reports no used block as lost.
    subprocess.run(["strip", "-g", str(program)], check=True)
    missed = list_errors(blocks, core)
    assert Counter(fate for fate, _ in missed.values()) == {"lost": 14 * 15}


@pytest.mark.platform("x86-64", "variables, containers and their owners")
def test_rust(tmp_path: Path) -> None:
    rustc, program = shutil.which("rustc"), tmp_path / "stale_sequences"
    assert rustc is not None, "rustc comes with cargo: apt-get install cargo"
    source = str(truth.PROGRAMS / "stale_sequences.rs")
    subprocess.run([rustc, "--edition=2021", "-g", "-Copt-level=1", source, "-o", str(program)], check=True)
    blocks, core = run(program, tmp_path / "run")
    assert Counter(blocks.values()) == {"lost": 3463, "held": 2216}
    assert list_errors(blocks, core) == {}
    # Without debug information, findleaks is certain only about maps. Six slots of the queue were used again.
    subprocess.run(["strip", "-g", str(program)], check=True)
    missed = list_errors(blocks, core)
    assert Counter(fate for fate, _ in missed.values()) == {"lost": 3463 - 5 * 600 - 6}
