"""glibc heaps in unusual states, on live processes and cores of several releases: findleaks reports the same results as the programs
print."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import libcs
import pytest
from variants import mark_matrix_except

import cores
from findleaks.allocators.directory import Directory, build_directory
from findleaks.allocators.glibc.instance import Glibc
from findleaks.engine.load import load
from findleaks.engine.terms import State
from findleaks.target.base import Target
from findleaks.target.copied import attach
from findleaks.target.core import open_core

SOURCE = Path(__file__).parents[1] / "programs" / "glibc_heap.c"
Program = Callable[..., Path]

VERSIONS = tuple(libcs.SUITES)
ENDS = mark_matrix_except(VERSIONS, VERSIONS[0], VERSIONS[-1])
NEWEST = mark_matrix_except(VERSIONS, VERSIONS[-1])


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Compile glibc_heap.c for the host's libc or another one, once for each kind of link."""
    folder = tmp_path_factory.mktemp("glibc")

    def compile_program(libc: str = "", *flags: str) -> Path:
        output = folder / f"heap{libc}{''.join(flags)}"
        if not output.exists():
            options = ["-O1", "-g", "-pthread", "-Wno-deprecated-declarations", *flags]
            if libc:
                libcs.get(libc).compile(SOURCE, output, [*options, "-Wl,--no-as-needed", "-ldl"])
            else:
                subprocess.run(["gcc", *options, "-o", str(output), str(SOURCE), "-ldl"], check=True)
            if "-g" in options:
                subprocess.run(["strip", str(output)], check=True)
        return output

    return compile_program


@contextmanager
def run_program(
    command: list[str], folder: Path, picture: str = "live", **environment: str
) -> Iterator[tuple[list[list[str]], Target, Directory]]:
    """The lines that the program printed, split into words, and the results of findleaks."""
    with cores.Running(command, folder, {**os.environ, **environment}) as running:
        target = attach(running.pid) if picture == "live" else open_core(str(running.kernel_core()))
        try:
            yield [line.split() for line in running.output.splitlines()], target, build_directory(target, load(target.arch))
        finally:
            target.close()


def compare(said: list[list[str]], directory: Directory) -> tuple[int, int]:
    """Check that every block has the state and size that the program prints. Return the number of blocks in use and of freed blocks."""
    blocks = directory.blocks
    used: dict[int, int] = {}
    freed: set[int] = set()
    for words in said:
        if words[0] == "freed":
            freed.add(int(words[1], 16))
        elif words[0] == "in-use":
            start, size = int(words[1], 16), int(words[2])
            used[start] = size
            # The program prints many addresses for a large block. There are few freed blocks.
            within = {*range(start, start + size, 16)} if size < 4096 else {at for at in freed if start <= at < start + size}
            freed -= within
    wrong = []
    for address, usable in used.items():
        index = blocks.find(address)
        if index < 0 or blocks.address(index) != address or blocks.state(index) != State.IN_USE or blocks.size(index) != usable:
            wrong.append(f"in use, of {usable}: {address:#x} is {index} {blocks.state(index).name if index >= 0 else ''}")
    for address in freed:
        index = blocks.find(address)
        if index >= 0 and blocks.state(index) == State.IN_USE:
            wrong.append(f"freed: {address:#x} lies in the block in use at {blocks.address(index):#x}")
    assert not wrong, wrong[:10]
    assert not directory.problems, directory.problems
    return len(used), len(freed)


def totals(said: list[list[str]], directory: Directory) -> None:
    """Check that the totals equal mallinfo's figures of the first libc."""
    reported = {words[1]: int(words[2]) for words in said if words[0] == "total"}
    assert reported
    several = len(directory.allocators) > 1
    glibc = next(a for a in directory.allocators if not several or (isinstance(a, Glibc) and a.instance.main.is_contiguous))
    assert isinstance(glibc, Glibc)
    summary = glibc.summary()
    arenas, mapped = summary["arenas"], summary["mmapped"]
    assert isinstance(arenas, list) and isinstance(mapped, dict)
    assert reported["arena"] == sum(arena["system"] for arena in arenas)
    assert (reported["hblks"], reported["hblkhd"]) == (mapped["blocks"], mapped["counted_bytes"])
    free = sum(size for span in glibc.spans for size in _free_chunks(glibc, directory, span.start, span.end))
    assert reported["fordblks"] == free + sum(arena["top"] for arena in arenas)
    assert summary["reconciled"]


def _free_chunks(glibc: Glibc, directory: Directory, start: int, end: int) -> Iterator[int]:
    """Return the sizes of the free chunks in a span, read from their headers."""
    blocks = directory.blocks
    for index in range(blocks.at_or_after(start), blocks.at_or_after(end)):
        if blocks.state(index) == State.FREE:
            head = glibc.memory.word(blocks.address(index) - glibc.memory.size)
            assert head is not None
            yield head & ~7


@pytest.mark.parametrize("scenario", ["plain", "threads", "mapped", "long-arenas"])
@pytest.mark.parametrize("version", ENDS)
def test_scenario(program: Program, tmp_path: Path, version: str, scenario: str) -> None:
    with run_program([str(program(version)), scenario], tmp_path) as (said, _, directory):
        used, freed = compare(said, directory)
        assert used > 10 and (freed > 10 or scenario == "mapped")
        totals(said, directory)
        (glibc,) = directory.allocators
        assert glibc.version == ".".join(libcs.get(version).package.split("-")[0].split(".")[:2])
        assert glibc.where == libcs.get(version).library.name


@pytest.mark.parametrize("version", ENDS)
def test_break_that_others_use(program: Program, tmp_path: Path, version: str) -> None:
    with run_program([str(program(version)), "foreign"], tmp_path) as (said, _, directory):
        compare(said, directory)
        totals(said, directory)
        (heap,) = [owned.heap for owned in directory.heaps if owned.heap.arena == "main"]
        assert [end - start >= size for (start, end), size in zip(heap.foreign, (4096, 24, 70000, 8))] == [True] * 4
        assert not any(r.start < part.end and part.start < r.end for r in directory.list_claimed() for part in heap.foreign)


@pytest.mark.parametrize("version", ENDS)
def test_no_break(program: Program, tmp_path: Path, version: str) -> None:
    with run_program([str(program(version)), "no-break"], tmp_path) as (said, _, directory):
        compare(said, directory)
        assert sum(owned.heap.arena == "main" for owned in directory.heaps) > 2
        (glibc,) = directory.allocators
        arenas = glibc.summary()["arenas"]
        assert isinstance(arenas, list) and arenas[0]["reconciled"]


@pytest.mark.parametrize("version", ENDS)
def test_two_namespaces(program: Program, tmp_path: Path, version: str) -> None:
    with run_program([str(program(version)), "namespace"], tmp_path) as (said, _, directory):
        compare(said, directory)
        totals(said, directory)
        assert len(directory.allocators) == 2


@pytest.mark.parametrize("version", NEWEST)
def test_never_called(program: Program, tmp_path: Path, version: str) -> None:
    with run_program([str(program(version)), "nothing"], tmp_path) as (said, _, directory):
        compare(said, directory)
        assert len(directory.allocators) == 1 and len(directory.blocks) < 10


@pytest.mark.parametrize("version", NEWEST)
def test_threads_only(program: Program, tmp_path: Path, version: str) -> None:
    with run_program([str(program(version)), "only-threads", "6"], tmp_path) as (said, _, directory):
        compare(said, directory)
        assert {owned.heap.arena for owned in directory.heaps} >= {f"arena {n}" for n in range(1, 7)}


@pytest.mark.parametrize(
    "tunable",
    [
        "tcache_count=0",
        "tcache_count=100",
        "tcache_max=64",
        "tcache_max=100000",
        "arena_max=1",
        "mmap_threshold=4096",
        "perturb=85",
        "hugetlb=1",
    ],
)
@pytest.mark.parametrize("version", NEWEST)
def test_tunables(program: Program, tmp_path: Path, version: str, tunable: str) -> None:
    with run_program([str(program(version)), "threads"], tmp_path, GLIBC_TUNABLES=f"glibc.malloc.{tunable}") as (said, _, directory):
        compare(said, directory)
        totals(said, directory)
        (glibc,) = directory.allocators
        caches = glibc.summary()["thread_caches"]
        assert caches == 0 if tunable == "tcache_count=0" and version == "2.43" else caches == 5


@pytest.mark.parametrize("flag", ["-static", "-static-pie"])
def test_static(program: Program, tmp_path: Path, flag: str) -> None:
    path = program("", flag)
    with run_program([str(path), "threads"], tmp_path) as (said, _, directory):
        compare(said, directory)
        totals(said, directory)
        assert directory.allocators[0].where == path.name


@pytest.mark.parametrize("scenario", ["threads", "mapped", "namespace"])
def test_kernel_core(program: Program, tmp_path: Path, scenario: str) -> None:
    with run_program([str(program()), scenario], tmp_path, "kernel") as (said, _, directory):
        compare(said, directory)
        totals(said, directory)
