"""scudo: findleaks reports the state that the truth program expects for every block, scudo's own statistics, and damage."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import debuggers
import mallocs_scudo
import pytest
import truth
from accuracy import FLAGS, SOURCE, check
from debuggers import run_cli

import cores

STATS = truth.PROGRAMS / "scudo_stats.c"
VERSIONS = [mallocs_scudo.INSTALLED, *mallocs_scudo.SUITES]
OPTIONS = "ae"  # arguments of truth.c: the malloc is not glibc's, and creates a thread key at its first call
LINE = re.compile(r"^ +(\d\d) \( *(\d+)\): mapped: +(\d+)K popped: +(\d+) pushed: +(\d+) inuse: +(\d+) total: +(\d+)", re.M)
LARGE = re.compile(r"MapAllocator: allocated (\d+) times \((\d+)K\), freed (\d+) times \((\d+)K\)")
TOTAL = re.compile(r"SizeClassAllocator64: (\d+)M mapped .* in (\d+) allocations; remains (\d+)")
QUARANTINE = re.compile(r"Quarantine: batches: (\d+); .* chunks: (\d+) ")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scudo")


@pytest.fixture(scope="module")
def linked(folder: Path) -> Path:
    """Build the truth program with LLVM 19's scudo linked in."""
    return mallocs_scudo.compile_linked(SOURCE, folder / "linked", (*FLAGS, "-O1", "-Wno-unused-command-line-argument"))


@pytest.fixture(scope="module")
def stripped(folder: Path, linked: Path) -> Path:
    subprocess.run(["strip", "-o", str(folder / "stripped"), str(linked)], check=True)
    return folder / "stripped"


@pytest.fixture(scope="module")
def plain(folder: Path) -> Path:
    return mallocs_scudo.compile_for(mallocs_scudo.INSTALLED, SOURCE, folder / "plain", (*FLAGS, "-O1"))


@pytest.fixture(scope="module")
def stats(folder: Path) -> Path:
    return mallocs_scudo.compile_linked(STATS, folder / "stats", (*FLAGS, "-O1"))


def test_preloaded(plain: Path, tmp_path: Path) -> None:
    check(plain, tmp_path, 3, "live", OPTIONS, **mallocs_scudo.preload_environment(mallocs_scudo.INSTALLED))


def test_stripped_with_a_quarantine(stripped: Path, tmp_path: Path) -> None:
    check(stripped, tmp_path, 3, "kernel", OPTIONS, **mallocs_scudo.QUARANTINE)


@pytest.mark.platform("x86-64", "scudo", of="LLVM 14 to 23")
@pytest.mark.matrix
@pytest.mark.parametrize("picture", ["kernel", "live"])
@pytest.mark.parametrize("settings", [{}, mallocs_scudo.QUARANTINE], ids=["default", "quarantine"])
@pytest.mark.parametrize("threads", [1, 5, 9])  # with 16 threads, the mappings that truth.c loses are reported
@pytest.mark.parametrize("version", VERSIONS)
def test_every_version(tmp_path: Path, version: str, threads: int, settings: dict[str, str], picture: str) -> None:
    program = mallocs_scudo.compile_for(version, SOURCE, tmp_path / "truth", (*FLAGS, "-O1"))
    check(program, tmp_path, threads, picture, OPTIONS, **mallocs_scudo.preload_environment(version), **settings)


@pytest.mark.matrix
@pytest.mark.parametrize("picture", ["kernel", "live"])
def test_linked(linked: Path, tmp_path: Path, picture: str) -> None:
    check(linked, tmp_path, 9, picture, OPTIONS)


def run_json(*words: str) -> dict[str, Any]:
    return dict(json.loads(run_cli(*words, "--json").stdout))


def compare_statistics(said: str, found: dict[str, Any]) -> None:
    """Compare all figures that __scudo_print_stats prints about size classes, large blocks and the quarantine."""
    rows = {row["name"]: row for row in found["caches"] if row["allocator"] == "scudo"}
    lines = [line for line in LINE.findall(said) if line[0] != "00"]  # class 0 contains scudo's own batches
    assert len(lines) > 20
    for _, size, mapped, popped, pushed, in_use, total in lines:
        own = rows[size]["own"]
        numbers = (own["mapped"] >> 10, own["popped"], own["pushed"], own["inuse"], own["total"])
        assert numbers == tuple(map(int, (mapped, popped, pushed, in_use, total))), size
        batches = own["total"] - rows[size]["total"]  # records of the quarantine, which are metadata
        assert rows[size]["in_use"] + rows[size]["cached"] + own["quarantined"] + batches == own["inuse"]
    (arena,) = (arena for arena in found["arenas"] if arena["allocator"] == "scudo")
    own = arena["own"]
    ((mapped, allocations, remains),) = TOTAL.findall(said)
    assert (own["mapped"] >> 20, own["allocations"], own["remains"]) == (int(mapped), int(allocations), int(remains))
    ((times, allocated, frees, freed),) = LARGE.findall(said)
    assert [own[f"large {name}"] for name in ("allocations", "frees")] == [int(times), int(frees)]
    assert [own[f"large {name}"] >> 10 for name in ("allocated", "freed")] == [int(allocated), int(freed)]
    assert rows["large"]["in_use"] == int(times) - int(frees)
    ((batches, chunks),) = QUARANTINE.findall(said)
    assert (own["quarantine batches"], own["quarantine chunks"]) == (int(batches), int(chunks))


@pytest.mark.parametrize("settings", [{}, mallocs_scudo.QUARANTINE], ids=["default", "quarantine"])
def test_statistics(stats: Path, tmp_path: Path, settings: dict[str, str]) -> None:
    with cores.Running([str(stats)], tmp_path, {**os.environ, **settings}) as running:
        said = (tmp_path / "stderr").read_text()
        compare_statistics(said, run_json("caches", "--pid", str(running.pid)))
        cached = run_json("caches", "--by-thread", "--pid", str(running.pid))
        result = run_cli("verify", "--pid", str(running.pid))
        assert result.returncode == 0 and "heap sound" in result.stdout
    threads = {row["thread"] for row in cached["threads"]}
    assert len(threads) == 4 and running.pid in threads
    # The first line of the text names scudo, its version and its file.
    assert "scudo 18-23 (stats)" in result.stdout


@pytest.mark.matrix
@pytest.mark.parametrize("settings", [{}, mallocs_scudo.QUARANTINE], ids=["default", "quarantine"])
@pytest.mark.parametrize("version", VERSIONS)
def test_statistics_of_every_version(tmp_path: Path, version: str, settings: dict[str, str]) -> None:
    program = mallocs_scudo.compile_for(version, STATS, tmp_path / "stats", (*FLAGS, "-O1"))
    with cores.Running([str(program)], tmp_path, {**os.environ, **settings, **mallocs_scudo.preload_environment(version)}) as running:
        compare_statistics((tmp_path / "stderr").read_text(), run_json("caches", "--pid", str(running.pid)))
        assert run_cli("verify", "--pid", str(running.pid)).returncode == 0


def test_debuggers_agree(stats: Path, tmp_path: Path) -> None:
    """GDB, LLDB and the command line agree, on a core and on the process. scudo has statistics also before its first allocation."""
    with cores.Running([str(stats)], tmp_path) as running:
        typed, pid = ["leaks find --json"], str(running.pid)
        live = [debuggers.gdb(typed, "-p", pid), debuggers.lldb([*typed, "detach"], "-p", pid)]
        core = running.kernel_core()
        found = run_json("find", str(core))
        assert found["allocators"][0]["name"] == "scudo" and found["totals"]["definite"]["blocks"] == 0
        for output in live:
            (line,) = debuggers.objects(output)
            assert json.loads(line)["totals"] == found["totals"]
        for output in (debuggers.gdb(typed, "-c", str(core)), debuggers.lldb(typed, "-c", str(core))):
            assert [json.loads(line) for line in debuggers.objects(output)] == [found]
    with cores.Running([str(stats), "empty"], tmp_path / "empty") as running:
        assert "no block in use found" in " ".join(run_cli("find", "--pid", str(running.pid)).stdout.split())


class Process:
    """The memory of a process, in which a test damages one word at a time."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)

    def word(self, address: int) -> int:
        return int.from_bytes(os.pread(self.memory, 8, address), "little")

    @contextmanager
    def changed(self, address: int, word: int) -> Iterator[None]:
        """Give the word at `address` this value for a time."""
        before = os.pread(self.memory, 8, address)
        os.pwrite(self.memory, word.to_bytes(8, "little"), address)
        try:
            yield
        finally:
            os.pwrite(self.memory, before, address)


@pytest.fixture(scope="module")
def process(stats: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with cores.Running([str(stats)], tmp_path_factory.mktemp("damaged"), {**os.environ, **mallocs_scudo.QUARANTINE}) as running:
        yield Process(running.pid)


def test_overwritten_headers(process: Process) -> None:
    """The headers of small blocks and of a large one are overwritten. findleaks reports each block, and counts it as in use."""
    lines = run_cli("blocks", "--json", "--pid", str(process.pid)).stdout.splitlines()
    in_use = {block: process.word(block - 16) for block in (int(json.loads(line)["address"], 16) for line in lines)}
    # A header has a size class, the state "in use" (0x100), and how far the header is from the beginning of the block (bit 32 on).
    small = {block: header >> 32 & 0xFFFF for block, header in in_use.items() if header & 0x3FF > 0x100}
    plain, aligned = (next(block for block, apart in small.items() if bool(apart) == wanted) for wanted in (False, True))
    large = next(block for block, header in in_use.items() if header & 0x3FF == 0x100)
    # The checksum is a CRC with a random cookie. Whether it detects a change depends only on the changed bits.
    for block, changed in (
        (plain, 1 << 12),
        (aligned, 1 << 12),
        (plain, 0x4141414141414141),
        (aligned, 0x4141414141414141),
        (large, 0x4141414141414141),
    ):
        with process.changed(block - 16, process.word(block - 16) ^ changed):
            answer = run_json("verify", "--pid", str(process.pid))
            assert f'"{block:#x}"' in run_cli("blocks", "--json", "--pid", str(process.pid)).stdout
        (problem,) = (one for one in answer["problems"] if int(one["address"], 16) == block - 16)
        assert not answer["sound"] and problem["corrupt"] and "was overwritten: the block counts as in use" in problem["what"]
    assert run_json("verify", "--pid", str(process.pid))["sound"]


def test_damaged_structures(process: Process) -> None:
    """Lists, counters and records of scudo are damaged."""
    from findleaks.session import Session
    from findleaks.target.live import LiveTarget

    with LiveTarget(process.pid) as target:
        (scudo,) = (one for one in Session(target).directory.allocators if one.name == "scudo")
    layout, one = scudo.found.layout, scudo.classes[3]  # type: ignore[attr-defined]
    first = scudo.found.address + layout.allocator + one.number * 0xC0  # type: ignore[attr-defined]
    cache = scudo.thread_blocks.blocks[0]  # type: ignore[attr-defined]
    large = scudo.list  # type: ignore[attr-defined]
    assert large.first
    for address, word, what in (
        (first + layout.mapped, 0x4141414141414141, "scudo's record of its 128-byte blocks"),
        (first + layout.allocated, 1 << 33, "scudo's record of its 128-byte blocks"),
        (first + layout.popped, 1, "scudo counts"),
        (cache.cache + cache.number * 256, 0x1C001D, "counts 29 cached"),
        (cache.cache + cache.number * 256 + 16, 8, "addresses that are not free blocks"),
        (large.first + 8, 0x4141414141414141, "scudo's list of large blocks"),
        (large.first + 8, large.first, "scudo's list of large blocks"),
        (scudo.found.address + 0x40, 8, "scudo's list of thread caches"),  # type: ignore[attr-defined]
        (scudo.found.address, 8, "does not fit the checksums"),  # type: ignore[attr-defined]
        (scudo.batches.chunks[0], 8, "scudo's quarantine list"),  # type: ignore[attr-defined]
    ):
        with process.changed(address, word):
            answer = run_json("verify", "--pid", str(process.pid))
        assert any(what in problem["what"] for problem in answer["problems"]), (what, answer["problems"])
    assert run_json("verify", "--pid", str(process.pid))["sound"]


def test_another_configuration(process: Process) -> None:
    """If the records of the classes are not at the expected place, findleaks refuses scudo with one message."""
    from findleaks.session import Session
    from findleaks.target.live import LiveTarget

    with LiveTarget(process.pid) as target:
        (scudo,) = (one for one in Session(target).directory.allocators if one.name == "scudo")
    found = scudo.found  # type: ignore[attr-defined]
    # Damage an unused class: without the start of a used region, findleaks may not find scudo. The order of regions is random.
    unused = max(set(range(45)) - {one.number for one in found.classes})
    with process.changed(found.address + found.layout.allocator + unused * 0xC0, 8):
        answer = run_json("verify", "--pid", str(process.pid))
    assert any("scudo in stats has an unknown layout" in problem["what"] for problem in answer["problems"]), answer
