"""Stacks of threads that ended and were not joined are distinguished from those of live, joined and detached threads. The program prints
the state of each thread."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import libcs
import mallocs_musl
import pytest
from debuggers import findleaks

import cores
from findleaks.engine import load as engine
from findleaks.libc.stacks import unjoined_threads
from findleaks.target.base import Target
from findleaks.target.copied import attach
from findleaks.target.core import open_core

PROGRAM = Path(__file__).resolve().parent.parent / "programs" / "unjoined.c"
STACK = 256 << 10
RESULT = 1000  # bytes of the block that each ending thread returns


def check(target: Target, joinable: int, routines: bool = True) -> None:
    ended = unjoined_threads(target, engine.load(target.arch), target.regions())
    stacks = [one.stack for one in ended]
    names = {symbol.name for one in ended for symbol in [target.symbolize(one.routine)] if symbol is not None}
    assert names == ({"ends"} if stacks and routines else set())
    assert len(stacks) == joinable
    assert all(STACK <= end - start <= STACK + (64 << 10) for start, end in stacks)
    assert all(a.end <= b.start for a, b in zip(stacks, stacks[1:]))
    assert not any(start <= thread.sp < end for start, end in stacks for thread in target.threads())


def check_results(pid: int, joinable: int, others: int) -> None:
    """Check that the results of ended threads that were not joined are reachable, because pthread_join would return them."""
    lines = findleaks("blocks", "--size", f"{RESULT}-{RESULT + 40}", "--json", "--pid", str(pid)).splitlines()
    kinds = Counter(row["kind"] for row in map(json.loads, lines) if row.get("state") == "in-use")
    # Stale words may refer to some results of joined and detached threads.
    assert kinds["reachable"] >= joinable and sum(kinds.values()) == joinable + others, kinds


def check_vectors(pid: int, joinable: int) -> None:
    """Check that only interior pointers refer to the DTVs of threads that were not joined. The C library will still free them."""
    totals = json.loads(findleaks("find", "--heuristics", "none", "--json", "--pid", str(pid)))["totals"]
    # Stale words may refer to the interior of some other blocks.
    assert totals["possible"]["blocks"] < joinable, totals


def run(program: Path, folder: Path, routines: bool = True) -> None:
    """Run the program with and without live threads. Read the process and a core."""
    for staying in (3, 0):
        with cores.Running([str(program), "40", "5", "4", str(staying)], folder / str(staying)) as running:
            with attach(running.pid) as live:
                check(live, 40, routines)
            check_results(running.pid, 40, 9)
            check_vectors(running.pid, 40)
            core = running.kernel_core()
        with open_core(str(core)) as target:
            check(target, 40, routines)
    with cores.Running([str(program), "0", "5", "4", "2"], folder / "none") as running, attach(running.pid) as live:
        check(live, 0)


def test_of_this_machines_glibc(tmp_path: Path) -> None:
    program = tmp_path / "unjoined"
    subprocess.run(["gcc", "-O1", "-Wall", "-Werror", "-pthread", "-o", str(program), str(PROGRAM)], check=True)
    run(program, tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize("version", sorted(libcs.SUITES))
def test_of_glibc(version: str, tmp_path: Path) -> None:
    run(libcs.get(version).compile(PROGRAM, tmp_path / "unjoined", ["-O1"]), tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize("version", sorted(mallocs_musl.SUITES))
def test_of_musl(version: str, tmp_path: Path) -> None:
    # Musl keeps the result on the stack of the thread
    run(mallocs_musl.get(version).compile(PROGRAM, tmp_path / "unjoined", "dynamic"), tmp_path, False)
