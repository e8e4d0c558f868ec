"""Structures to which only interior pointers refer are reachable if they are intact. The programs print the state of each block."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import libraries_cpp
import pytest
import truth
from debuggers import findleaks, gdb, lldb, objects

import cores


def build(folder: Path, name: str, *words: str) -> Path:
    """Compile a program of tests/programs with this command. The source is inserted after the first word, before libraries."""
    source = next(truth.PROGRAMS.glob(f"{name}.*"))
    program = folder / name
    subprocess.run([words[0], str(source), *words[1:], "-o", str(program)], check=True)
    return program


def find(*words: str) -> dict[str, Any]:
    return dict(json.loads(findleaks("find", "--json", *words)))


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = ["-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror"]
    return build(tmp_path_factory.mktemp("laid_out"), "interior_structures", "cc", *flags)


@pytest.mark.platform("x86-64", "variables, containers and their owners")
@pytest.mark.parametrize("pure", ["", pytest.param("1", marks=pytest.mark.matrix)])
def test_state_of_each_block(laid_out: Path, tmp_path: Path, pure: str) -> None:
    """Intact structures and the blocks that they refer to are reachable. Damaged structures and other interior pointers stay possibly
    lost. Both engines and all front ends agree."""
    with cores.Running([str(laid_out)], tmp_path) as run:
        records = truth.parse(run.output)
        core = str(run.kernel_core())
    verdict = truth.compare(records, truth.ask(core, environment={"FINDLEAKS_PURE": pure} if pure else {})[0])
    assert verdict.perfect, str(verdict)
    said = find(core)
    counts = {one["structure"]: one["blocks"] for one in said["heuristics"]["structures"]}
    assert counts == {"hashbrown": 126, "swiss-table": 126, "pmr-chunk": 9, "arc": 8, "aligned": 15}
    held = [r for r in records if r.kind == "reachable" and r.category not in ("head",)]
    assert said["heuristics"]["held"] == {"blocks": len(held), "bytes": sum(r.usable for r in held)}
    assert "126 hash tables of Rust (HashMap, HashSet)" in findleaks("find", core)
    for other in (gdb(["leaks find --json"], str(laid_out), core), lldb(["leaks find --json"], str(laid_out), "-c", core)):
        one = json.loads(objects(other)[0])
        assert (one["heuristics"], one["totals"]) == (said["heuristics"], said["totals"])
    none = find("--heuristics", "none", core)
    assert none["heuristics"]["structures"] == []
    assert none["totals"]["possible"]["blocks"] == said["totals"]["possible"]["blocks"] + len(held)


@pytest.mark.parametrize("pure", ["", pytest.param("1", marks=pytest.mark.matrix)])
def test_links_inside_objects(tmp_path: Path, pure: str) -> None:
    """Objects of lists and trees are reachable if their links refer to links. A pointer to another member is not enough."""
    program = build(tmp_path, "linked_nodes", "cc", "-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror")
    with cores.Running([str(program)], tmp_path / "run") as run:
        records, core = truth.parse(run.output), str(run.kernel_core())
    verdict = truth.compare(records, truth.ask(core, environment={"FINDLEAKS_PURE": pure} if pure else {})[0])
    assert verdict.perfect, str(verdict)
    assert {r.category for r in records} == {"row", "record", "bucket", "entry", "plain", "chunk", "stray", "lost", "value"}
    found = {one["structure"]: one["blocks"] for one in find(core)["heuristics"]["structures"]}
    assert found == {"linked": 4 * 24, "bump-chunk": 3}
    assert "96 blocks with links of a list or tree inside" in findleaks("find", core)


@pytest.mark.platform("x86-64", "variables, containers and their owners")
def test_exceptions(tmp_path: Path) -> None:
    """Exceptions that are stored or caught are reachable, and so are their messages. Only lost exceptions are leaked. The name of their
    type contains the class."""
    program = build(tmp_path, "thrown_exceptions", "g++", "-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Werror")
    with cores.Running([str(program)], tmp_path / "run") as run:
        lost_blocks = int(run.output.split()[0])
        core = str(run.kernel_core())
    said = find(core)
    assert said["totals"]["possible"] == {"blocks": 0, "bytes": 0}
    assert said["totals"]["definite"]["blocks"] == lost_blocks
    found = {one["structure"]: one["blocks"] for one in said["heuristics"]["structures"]}
    assert found == {"exception": 6, "stdstring": 6}
    assert "C++ exception (Failure)" in findleaks("find", core)
    plain = find("--heuristics", "none", core)
    assert plain["totals"]["possible"]["blocks"] == 6 * 4


@pytest.mark.platform("x86-64", "variables, containers and their owners")
def test_rust(tmp_path: Path) -> None:
    """No block in a container of a Rust program is possibly lost, and exactly the blocks that the program leaks are lost."""
    rustc = shutil.which("rustc")
    assert rustc is not None, "rustc comes with cargo: apt-get install cargo"
    with cores.Running(
        [str(build(tmp_path, "rust_tables", rustc, "--edition=2021", "-Copt-level=1", "-Cdebuginfo=0"))], tmp_path / "run"
    ) as run:
        tables, lost_boxes = map(int, run.output.split()[:2])
        said = find("--pid", str(run.pid))
        plain = find("--heuristics", "none", "--pid", str(run.pid))
    assert said["totals"]["possible"] == {"blocks": 0, "bytes": 0}
    assert said["totals"]["definite"]["blocks"] == lost_boxes
    assert said["totals"]["indirect"]["blocks"] == 0
    found = {one["structure"]: one["blocks"] for one in said["heuristics"]["structures"]}
    assert found["hashbrown"] == tables
    assert plain["totals"]["possible"]["blocks"] > 10_000


def check_coroutines(program: Path, folder: Path, stacks: int) -> None:
    """Check that exactly the blocks that the program leaks are lost, and that none is possibly lost."""
    with cores.Running([str(program)], folder) as run:
        lost_blocks = int(run.output.split()[0])
        said = find("--pid", str(run.pid))
        core = str(run.kernel_core())
    assert find(core)["totals"] == said["totals"]
    assert said["totals"]["possible"] == {"blocks": 0, "bytes": 0}
    assert (said["totals"]["definite"]["blocks"], said["totals"]["indirect"]["blocks"]) == (lost_blocks, 0)
    found = {one["structure"]: one["blocks"] for one in said["heuristics"]["structures"]}
    assert (found["coroutine-stack"], found["coroutine-frame"]) == (stacks, 40)
    assert found["pmr-chunk"] > 40


@pytest.mark.platform("x86-64", "variables, containers and their owners")
def test_coroutines_and_memory_resources(tmp_path: Path) -> None:
    flags = ["-std=c++20", "-pthread", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]
    check_coroutines(build(tmp_path, "interior_coroutines", "g++", *flags), tmp_path / "run", 40)


@pytest.mark.matrix
@pytest.mark.parametrize("release", libraries_cpp.BOOST)
def test_boost(release: str, tmp_path: Path) -> None:
    """Stacks of Boost.Context and Boost.Coroutine2 are in memory of malloc or in mappings. Only those of malloc are blocks."""
    flags = ["-std=c++20", "-O1", "-g", *libraries_cpp.boost(release)]
    check_coroutines(build(tmp_path, "interior_coroutines", "g++", *flags), tmp_path / "run", 40 + 2 * 40)


@pytest.mark.matrix
@pytest.mark.parametrize("release", libraries_cpp.ABSEIL)
def test_abseil(release: str, tmp_path: Path) -> None:
    """No block in Abseil's tables is possibly lost. Since release 20230802, the tables refer to the inside of blocks."""
    program = build(tmp_path, "abseil_tables", "g++", "-std=c++17", "-O1", "-g", *libraries_cpp.abseil(release))
    with cores.Running([str(program)], tmp_path / "run") as run:
        lost_blocks, tables = map(int, run.output.split()[:2])
        said = find("--pid", str(run.pid))
        plain = find("--heuristics", "none", "--pid", str(run.pid))
    assert said["totals"]["possible"] == {"blocks": 0, "bytes": 0}
    assert (said["totals"]["definite"]["blocks"], said["totals"]["indirect"]["blocks"]) == (lost_blocks, 0)
    found = {one["structure"]: one["blocks"] for one in said["heuristics"]["structures"]}
    inside = release != "20220623"
    # Since 20240722, tables of one small entry have no block.
    assert tables - 8 <= found.get("swiss-table", 0) <= tables if inside else "swiss-table" not in found
    assert (plain["totals"]["possible"]["blocks"] > 50_000) == inside
