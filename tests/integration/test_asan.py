"""AddressSanitizer: findleaks reports the same blocks, and the same stacks of allocations and frees, as the runtime of AddressSanitizer
itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import asan
import asan_checks
import debuggers
import pytest
from accuracy import SOURCE, check
from asan_checks import Stopped
from debuggers import run_cli

import cores

COUNT = "320"  # number of blocks of each of two threads


@pytest.fixture(
    scope="module",
    params=["gcc", "clang", pytest.param("gcc-static", marks=pytest.mark.matrix), pytest.param("clang-shared", marks=pytest.mark.matrix)],
)
def stopped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stopped]:
    """Stop the program. Return its core if the runtime is linked statically, and the process itself if it uses clang's shared runtime."""
    folder = tmp_path_factory.mktemp(request.param)
    program = asan.build(request.param, "asan_sites.c", folder / "asan_sites", *asan.STACKS)
    with cores.Running([str(program), COUNT], folder, asan.environment()) as running:
        blocks = {block.address: block for block in asan.blocks(running.output)}
        leaks = asan.leaks((folder / "stderr").read_text())
        words = (str(running.kernel_core()),) if request.param != "clang-shared" else ("--pid", str(running.pid))
        yield Stopped(words, blocks, leaks)


@pytest.mark.platform("x86-64", "AddressSanitizer")
def test_every_block(stopped: Stopped) -> None:
    asan_checks.every_block(stopped)


def test_every_stack(stopped: Stopped) -> None:
    asan_checks.every_stack(stopped)


def test_stacks_of_each_class(stopped: Stopped) -> None:
    asan_checks.stacks_of_each_class(stopped)


def test_leaks_equal_those_of_leaksanitizer(stopped: Stopped) -> None:
    asan_checks.lost_as_leaksanitizer_says(stopped)


@pytest.mark.matrix
@pytest.mark.parametrize("release", asan.RELEASES)
def test_other_releases(tmp_path: Path, release: str) -> None:
    """The test preloads runtimes of other releases. findleaks reports every block, and the stack of every lost block. findleaks refuses
    older releases, whose blocks have another header."""
    program = asan.build_plain("asan_sites.c", tmp_path / "asan_sites")
    environment = {**asan.environment(), "LD_PRELOAD": str(asan.library(release))}
    with cores.Running([str(program), "300"], tmp_path, environment) as running:
        blocks = {block.address: block for block in asan.blocks(running.output)}
        stopped = Stopped(("--pid", str(running.pid)), blocks, asan.leaks((tmp_path / "stderr").read_text()))
        if release in asan.OLDER:
            warnings = stopped.ask("find")["warnings"]
            assert any("has the chunk headers of LLVM 11, GCC 10 or older" in warning for warning in warnings)
        else:
            asan_checks.every_block(stopped)
            asan_checks.every_stack(stopped)
            asan_checks.lost_as_leaksanitizer_says(stopped)


@pytest.mark.parametrize(
    ("build", "picture"),
    [
        ("clang", "kernel"),
        ("gcc", "live"),
        *(
            pytest.param(build, picture, marks=pytest.mark.matrix)
            for build in asan.BUILDS
            for picture in ("kernel", "live")
            if (build, picture) not in (("clang", "kernel"), ("gcc", "live"))
        ),
    ],
)
def test_state_of_each_block(tmp_path: Path, build: str, picture: str) -> None:
    """findleaks reports the state of each block that the program expects, also if fake stacks are enabled, as clang does by default."""
    program = asan.build(build, SOURCE.name, tmp_path / "truth", "-O1")
    environment = asan.environment(detect_leaks="0")
    check(program, tmp_path, 5, picture, "a", ASAN_OPTIONS=environment["ASAN_OPTIONS"])


def test_cores_of_findleaks(tmp_path: Path) -> None:
    """Cores that findleaks writes lack the shadow memory, because the process excludes it from dumps. All results are still complete, and
    the same in each front end."""
    program = asan.build("clang", "asan_sites.c", tmp_path / "asan_sites", *asan.STACKS)
    core = tmp_path / "written.core"
    with cores.Running([str(program), "100"], tmp_path / "run", asan.environment()) as running:
        said = run_cli("snapshot", "--weight", "core", "-o", str(core), "--pid", str(running.pid))
        assert core.exists() and core.stat().st_blocks * 512 < 64 << 20, said.stderr
        live = json.loads(run_cli("find", "--by", "site", "--json", "--pid", str(running.pid)).stdout)
    words = ("find", "--by", "site", "--json")
    found = json.loads(run_cli(*words, str(core)).stdout)
    assert found["trusted"] and [group["examples"] for group in found["groups"]] == [group["examples"] for group in live["groups"]]
    assert not [warning for warning in found["warnings"] if "is unattributed" not in warning]
    typed = ["leaks " + " ".join(words)]
    for output in (debuggers.gdb(typed, "-c", str(core)), debuggers.lldb(typed, "-c", str(core))):
        assert [json.loads(line) for line in debuggers.objects(output)] == [found]


def test_gdb_does_not_read_the_shadow_memory(tmp_path: Path) -> None:
    """findleaks does not copy a process that GDB has stopped. Reading all of the shadow memory would create gigabytes of page tables."""
    program = asan.build("gcc", "asan_sites.c", tmp_path / "asan_sites", *asan.STACKS)
    with cores.Running([str(program), "100"], tmp_path / "run", asan.environment()) as running:
        before = page_tables(running.pid)
        (line,) = debuggers.objects(debuggers.gdb(["leaks find --json"], "-p", str(running.pid)))
        assert json.loads(line)["totals"]["definite"]["blocks"] > 60
        assert page_tables(running.pid) < before + (16 << 20)


def page_tables(pid: int) -> int:
    """Return the size of the process's page tables in bytes."""
    (size,) = re.findall(r"^VmPTE:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M)
    return int(size) << 10
