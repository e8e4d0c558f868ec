"""AddressSanitizer: every block, and every stack that allocated or freed one, as its own runtime says."""

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
from debuggers import ran

import cores

COUNT = "320"  # blocks of each of two threads


@pytest.fixture(
    scope="module",
    params=["gcc", "clang", pytest.param("gcc-static", marks=pytest.mark.matrix), pytest.param("clang-shared", marks=pytest.mark.matrix)],
)
def stopped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stopped]:
    """The result is a core if the runtime is linked in, and the process if it is clang's shared one."""
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


def test_lost_as_leaksanitizer_says(stopped: Stopped) -> None:
    asan_checks.lost_as_leaksanitizer_says(stopped)


@pytest.mark.matrix
@pytest.mark.parametrize("release", asan.RELEASES)
def test_releases(tmp_path: Path, release: str) -> None:
    """The runtimes of other releases, preloaded: every block and every lost one's stack; older ones' headers are refused."""
    program = asan.build_plain("asan_sites.c", tmp_path / "asan_sites")
    environment = {**asan.environment(), "LD_PRELOAD": str(asan.library(release))}
    with cores.Running([str(program), "300"], tmp_path, environment) as running:
        blocks = {block.address: block for block in asan.blocks(running.output)}
        stopped = Stopped(("--pid", str(running.pid)), blocks, asan.leaks((tmp_path / "stderr").read_text()))
        if release in asan.OLDER:
            warnings = stopped.ask("find")["warnings"]
            assert any("has the chunk headers of LLVM 11, GCC 10 or an older one" in warning for warning in warnings)
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
def test_what_is_lost(tmp_path: Path, build: str, picture: str) -> None:
    """Block by block by the program that knows, with fake stacks (clang's default)."""
    program = asan.build(build, SOURCE.name, tmp_path / "truth", "-O1")
    environment = asan.environment(detect_leaks="0")
    check(program, tmp_path, 5, picture, "a", ASAN_OPTIONS=environment["ASAN_OPTIONS"])


def test_cores_of_findleaks(tmp_path: Path) -> None:
    """They lack the shadow, which the process excludes from dumps, and nothing that is needed; GDB, LLDB and the command line agree."""
    program = asan.build("clang", "asan_sites.c", tmp_path / "asan_sites", *asan.STACKS)
    core = tmp_path / "written.core"
    with cores.Running([str(program), "100"], tmp_path / "run", asan.environment()) as running:
        said = ran("snapshot", "--weight", "core", "-o", str(core), "--pid", str(running.pid))
        assert core.exists() and core.stat().st_blocks * 512 < 64 << 20, said.stderr
        live = json.loads(ran("find", "--by", "site", "--json", "--pid", str(running.pid)).stdout)
    words = ("find", "--by", "site", "--json")
    found = json.loads(ran(*words, str(core)).stdout)
    assert found["trusted"] and [group["examples"] for group in found["groups"]] == [group["examples"] for group in live["groups"]]
    assert not [warning for warning in found["warnings"] if "is unattributed" not in warning]
    typed = ["leaks " + " ".join(words)]
    for output in (debuggers.gdb(typed, "-c", str(core)), debuggers.lldb(typed, "-c", str(core))):
        assert [json.loads(line) for line in debuggers.objects(output)] == [found]


def test_a_debugger_leaves_the_shadow_alone(tmp_path: Path) -> None:
    """Of a process that GDB holds nothing is copied: a look at every part of the shadow would make page tables for it, of gigabytes."""
    program = asan.build("gcc", "asan_sites.c", tmp_path / "asan_sites", *asan.STACKS)
    with cores.Running([str(program), "100"], tmp_path / "run", asan.environment()) as running:
        before = page_tables(running.pid)
        (line,) = debuggers.objects(debuggers.gdb(["leaks find --json"], "-p", str(running.pid)))
        assert json.loads(line)["totals"]["definite"]["blocks"] > 60
        assert page_tables(running.pid) < before + (16 << 20)


def page_tables(pid: int) -> int:
    """Bytes of the process's page tables."""
    (size,) = re.findall(r"^VmPTE:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M)
    return int(size) << 10
