"""AddressSanitizer: every block, and every stack that allocated or freed one, as its own runtime says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import asan
import debuggers
import pytest
from accuracy import SOURCE, check
from debuggers import ran

import cores

COUNT = "900"  # blocks of each of two threads


class Stopped(NamedTuple):
    """A program, or its core: the words that name it, what it says of its blocks, and LeakSanitizer's report."""

    words: tuple[str, ...]
    blocks: dict[int, asan.Block]
    leaks: list[asan.Leak]

    def ask(self, *words: str) -> dict[str, Any]:
        done = ran(*words, "--json", *self.words)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def rows(self, *words: str) -> list[dict[str, Any]]:
        done = ran("blocks", *words, "--limit", "0", "--json", *self.words)
        return [row for row in map(json.loads, done.stdout.splitlines()) if "address" in row]


@pytest.fixture(
    scope="module",
    params=["gcc", "clang", pytest.param("gcc-static", marks=pytest.mark.matrix), pytest.param("clang-shared", marks=pytest.mark.matrix)],
)
def stopped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stopped]:
    """With GCC's runtime a core, with clang's the process."""
    folder = tmp_path_factory.mktemp(request.param)
    program = asan.build(request.param, "asan_sites.c", folder / "asan_sites", *asan.STACKS)
    with cores.Running([str(program), COUNT], folder, asan.environment()) as running:
        blocks = {block.address: block for block in asan.blocks(running.output)}
        leaks = asan.leaks((folder / "stderr").read_text())
        words = (str(running.kernel_core()),) if request.param.startswith("gcc") else ("--pid", str(running.pid))
        yield Stopped(words, blocks, leaks)


@pytest.mark.platform("x86-64", "AddressSanitizer")
def test_every_block(stopped: Stopped) -> None:
    rows = {int(row["address"], 16): row for row in stopped.rows("--state", "all")}
    wrong = []
    for block in stopped.blocks.values():
        row = rows.get(block.address, {"size": None, "state": None, "kind": None})
        kind = {"used": "reachable", "lost": "definite", "freed": None}[block.state]
        said = row["size"], row["state"], row["kind"]
        if said != (block.size, "free" if block.state == "freed" else "in-use", kind):
            wrong.append((block, said))
    assert len(stopped.blocks) > 600 and not wrong, wrong[:5]


def test_every_stack(stopped: Stopped) -> None:
    """Also those of freed blocks, by whom they were freed."""
    freed = [block for block in stopped.blocks.values() if block.state == "freed"]
    rows = {int(row["address"], 16): row for row in stopped.rows()}
    assert "find --by site" in stopped.ask("find")["next"]
    groups = stopped.ask("find", "--by", "site", "--limit", "0")["groups"]
    sites = {group["site"]["number"]: group["site"]["frames"] for group in groups}
    lost = [block for block in stopped.blocks.values() if block.state == "lost"]
    for block in lost:
        frames = sites[rows[block.address]["site"]]
        assert tuple(int(frame["address"], 16) for frame in frames) == block.allocated, block
        assert block.function in [frame["function"] for frame in frames]
    held = [block for block in stopped.blocks.values() if block.state == "used"]
    some = held[:: len(held) // 60] + freed[:: len(freed) // 60]
    answers = stopped.ask("whatis", *(hex(block.address) for block in some))["answers"]
    for block, answer in zip(some, answers):
        stacks = [tuple(int(frame["address"], 16) for frame in site["frames"]) for site in answer["sites"]]
        assert stacks == [block.allocated, *([block.freed] if block.size >= 8 and block.freed else [])], block
    assert any(block.freed for block in some)


def test_stacks_of_each_class(stopped: Stopped) -> None:
    """As many blocks of as many bytes as the class has in use: each has a stack."""
    classes = {row["name"]: (row["in_use"], row["in_use_bytes"]) for row in stopped.ask("caches")["caches"] if row["in_use"]}
    found: dict[str, list[int]] = {}
    for row in stopped.ask("caches", "--sites", "--limit", "0")["sites"]:
        sums = found.setdefault(row["name"], [0, 0])
        sums[0], sums[1] = sums[0] + row["blocks"], sums[1] + row["bytes"]
    assert len(classes) > 3 and {name: tuple(sums) for name, sums in found.items()} == classes


def test_lost_as_leaksanitizer_says(stopped: Stopped) -> None:
    groups = stopped.ask("find", "--by", "site", "--limit", "0")["groups"]
    ours = sorted(
        (tuple(int(frame["address"], 16) for frame in group["site"]["frames"]), group["blocks"], group["bytes"]) for group in groups
    )
    assert stopped.leaks and ours == sorted((leak.frames, leak.blocks, leak.bytes) for leak in stopped.leaks)
    lost = {int(row["address"], 16) for row in stopped.rows("--kind", "lost")}
    assert lost == frozenset().union(*(leak.addresses for leak in stopped.leaks))


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
            test_every_block(stopped)
            test_every_stack(stopped)
            test_lost_as_leaksanitizer_says(stopped)


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
    assert not [warning for warning in found["warnings"] if "belongs to no known allocator" not in warning]
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
