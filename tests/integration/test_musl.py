"""musl's mallocs: findleaks reports the expected state of every block, size classes agree with the allocator's counters, and damage is
found."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mallocs_musl
import pytest
import truth
from accuracy import SOURCE, check
from debuggers import run_cli
from kernel_cores import run_until_crash

import cores
from findleaks.allocators.base import Allocator, Problem
from findleaks.allocators.directory import Directory, build_directory
from findleaks.allocators.musl.engine import LARGE
from findleaks.allocators.musl.layout import CLASSES
from findleaks.allocators.musl.ng import MallocNG
from findleaks.engine.load import load
from findleaks.engine.terms import State
from findleaks.target.copied import attach
from findleaks.target.core import open_core

NEW = tuple(mallocs_musl.SUITES)
OLD = tuple(f"{version}-old" for version in mallocs_musl.SUITES)
HERE, HERE_OLD = "1.2.3", "1.2.3-old"
"""The first versions in the list of packages. They are always tested."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory):
    """Build each program once for each musl and each way to link it."""
    made: dict[tuple[str, str, str], Path] = {}
    folder = tmp_path_factory.mktemp("musl")

    def compiled(version: str, link: str, name: str = "truth", *flags: str) -> Path:
        key = version, link, name
        if key not in made:
            output = folder / f"{name}-{version}-{link}"
            made[key] = mallocs_musl.choose(version, link).compile(SOURCE.with_name(f"{name}.c"), output, link, *flags)
        return made[key]

    return compiled


@contextmanager
def run_program(program: Path, folder: Path, *arguments: str, picture: str = "kernel") -> Iterator[tuple[str, Allocator, Directory]]:
    """The output of the program, and the results of findleaks."""
    with cores.Running([str(program), *arguments], folder) as running:
        if picture == "live":
            target = attach(running.pid)
        else:
            target = open_core(str(running.kernel_core() if picture == "kernel" else running.gcore()))
        try:
            directory = build_directory(target, load(target.arch))
            (allocator,) = directory.allocators
            assert allocator.name == "musl"
            yield running.output, allocator, directory
        finally:
            target.close()


@pytest.mark.parametrize(
    ("version", "link", "threads", "picture"),
    [
        (HERE, "dynamic", 5, "kernel"),
        (HERE, "static", 33, "live"),
        (HERE, "static-pie", 5, "gcore"),
        (HERE_OLD, "static", 5, "kernel"),
        (HERE_OLD, "static-pie", 5, "live"),
    ],
)
def test_truth(compiled, tmp_path: Path, version: str, link: str, threads: int, picture: str) -> None:
    check(compiled(version, link), tmp_path, threads, picture, "a")


@pytest.mark.platform("x86-64", "musl's mallocng", of="1.2.2 to 1.2.6")
@pytest.mark.platform("x86-64", "musl's oldmalloc")
@pytest.mark.matrix
@pytest.mark.parametrize("threads", [5, 33])
@pytest.mark.parametrize("picture", ["kernel", "gcore", "live"])
@pytest.mark.parametrize("link", mallocs_musl.LINKS)
@pytest.mark.parametrize("version", [*NEW, *OLD])
def test_truth_of_every_version(compiled, tmp_path: Path, version: str, link: str, picture: str, threads: int) -> None:
    check(compiled(version, link), tmp_path, threads, picture, "a")


@pytest.mark.parametrize("options", [pytest.param("ab", id="break blocked")])
@pytest.mark.parametrize("version", [HERE_OLD, pytest.param(HERE, marks=pytest.mark.matrix)])
def test_heaps_of_other_shapes(compiled, tmp_path: Path, version: str, options: str) -> None:
    """If the break cannot grow, oldmalloc continues its heap in mappings, and mallocng places its metadata in mappings."""
    check(compiled(version, "static"), tmp_path, 3, "kernel", options, 2)


@pytest.mark.matrix
@pytest.mark.parametrize("options", ["ab", "ah", "ad", "af"])
@pytest.mark.parametrize("version", [*NEW, *OLD])
def test_heaps_of_other_shapes_of_every_version(compiled, tmp_path: Path, version: str, options: str) -> None:
    check(compiled(version, "static-pie"), tmp_path, 5, "kernel", options, 2)


@pytest.mark.parametrize(
    ("version", "link"),
    [
        (HERE, "dynamic"),
        (HERE_OLD, "static"),
        *(pytest.param(version, link, marks=pytest.mark.matrix) for version in [*NEW, *OLD] for link in ("dynamic", "static")),
    ],
)
def test_threads_that_ended_and_storage_in_blocks(compiled, tmp_path: Path, version: str, link: str) -> None:
    """ld.so allocates the main thread's TLS with malloc. Stacks stay mapped until threads are joined, and refer to the return values of
    the threads."""
    with cores.Running([str(compiled(version, link, "musl_threads"))], tmp_path) as running:
        records = truth.parse(running.output)
        blocks, _ = truth.ask(str(running.kernel_core()))
    verdict = truth.compare(records, blocks)
    assert len(records) == 3 * 4 + 1 + 4
    assert verdict.perfect, str(verdict)


@pytest.mark.parametrize("version", [pytest.param(v, marks=() if v == HERE else pytest.mark.matrix) for v in (*NEW, *OLD)])
def test_thread_local_storage_of_plugins(tmp_path: Path, version: str) -> None:
    """The TLS of dlopen'ed libraries is in blocks that ld.so allocates."""
    musl, source = mallocs_musl.choose(version, "dynamic"), SOURCE.with_name("dynamic_tls.c")
    library = musl.library(source, tmp_path / "library.so", "-DLIBRARY")
    program = musl.compile(source, tmp_path / "program", "dynamic")
    with cores.Running([str(program), str(library)], tmp_path / "run") as running:
        records = truth.parse(running.output)
        blocks, _ = truth.ask(str(running.kernel_core()))
    verdict = truth.compare(records, blocks)
    assert len(records) == 4 * 4
    assert verdict.perfect, str(verdict)


def program_blocks(output: str) -> dict[int, int]:
    """Return the blocks of the program: {address: usable size}."""
    rows = (line.split() for line in output.splitlines() if line.startswith("block "))
    return {int(address, 16): int(size, 16) for _, address, size in rows}


def identities(allocator: Allocator, directory: Directory) -> None:
    """Check that the rows of the table of caches add up to all blocks, and that the rows of arenas do, too."""
    rows = allocator.caches(directory.blocks)
    for state, count, size in (
        (State.IN_USE, sum(row.in_use for row in rows), sum(row.in_use_bytes for row in rows)),
        (State.FREE, sum(row.free for row in rows), sum(row.free_bytes for row in rows)),
        (State.CACHED, sum(row.cached for row in rows), 0),
    ):
        assert directory.blocks.totals(state) == (count, size)
    arenas = allocator.arenas(directory.blocks)
    assert sum(arena.in_use for arena in arenas) == sum(row.in_use_bytes for row in rows)
    assert sum(arena.free for arena in arenas) == sum(row.free_bytes for row in rows)
    for arena in arenas:
        assert arena.mapped >= sum(row.memory for row in rows if row.arena == arena.name)


@pytest.mark.parametrize("picture", ["kernel", pytest.param("gcore", marks=pytest.mark.matrix), "live"])
@pytest.mark.parametrize("version", [pytest.param(v, marks=() if v == HERE else pytest.mark.matrix) for v in NEW])
def test_classes_against_the_counters_of_mallocng(compiled, tmp_path: Path, version: str, picture: str) -> None:
    """The program prints usage_by_class, which it finds by a symbol. findleaks finds the same counters, and counts the same slots in the
    groups."""
    with run_program(compiled(version, "static", "musl_caches", "-DCONTEXT"), tmp_path, picture=picture) as (output, allocator, directory):
        assert directory.problems == []
        counted = {int(line.split()[1]): int(line.split()[2]) for line in output.splitlines() if line.startswith("class ")}
        assert allocator.read_counters() == {f"usage_by_class[{number}]": slots for number, slots in counted.items() if slots}
        identities(allocator, directory)
        slots: Counter[int] = Counter()
        for row in allocator.caches(directory.blocks):
            if row.arena == "main":
                slots[CLASSES.index((row.size + 4) // 16)] += row.total + row.own["nested groups"]
        assert slots == Counter({number: count for number, count in counted.items() if count})
        assert isinstance(allocator, MallocNG)
        large = [group for group in allocator.groups.all if group.number == LARGE]
        assert len(large) == sum(row.total for row in allocator.caches(directory.blocks) if row.name == "large") > 10
        compare_blocks(output, directory)
        assert [problem for problem in allocator.verify(directory.blocks) if problem] == []
        assert allocator.checked["slots"] >= sum(counted.values()) / 2


def compare_blocks(output: str, directory: Directory) -> None:
    """Check that each block of the program exists with its size. A few other blocks in use belong to libc."""
    blocks = directory.blocks
    wanted = program_blocks(output)
    for address, size in wanted.items():
        index = blocks.find(address)
        assert (blocks.address(index), blocks.size(index), blocks.state(index)) == (address, size, State.IN_USE)
    assert len(wanted) <= blocks.totals(State.IN_USE).blocks <= len(wanted) + 40


@pytest.mark.parametrize("link", ["static", pytest.param("dynamic", marks=pytest.mark.matrix)])
@pytest.mark.parametrize("version", [pytest.param(v, marks=() if v == HERE_OLD else pytest.mark.matrix) for v in OLD])
def test_chunks_of_oldmalloc(compiled, tmp_path: Path, version: str, link: str) -> None:
    with run_program(compiled(version, link, "musl_caches"), tmp_path) as (output, allocator, directory):
        assert directory.problems == []
        identities(allocator, directory)
        compare_blocks(output, directory)
        assert [problem for problem in allocator.verify(directory.blocks) if problem] == []
        free = directory.blocks.totals(State.FREE).blocks
        assert allocator.checked["bin links"] >= free > 200


def damage(output: str) -> tuple[int, int]:
    """Return (block, first wrong byte) as the program prints them."""
    line = next(line for line in output.splitlines() if line.startswith("damaged "))
    return int(line.split()[1], 16), int(line.split()[2], 16)


@pytest.mark.parametrize("letter", ["o", "t", "u"])
@pytest.mark.parametrize("version", [HERE, HERE_OLD])
def test_damage_is_reported_at_its_place(compiled, tmp_path: Path, version: str, letter: str) -> None:
    """A byte after a block, a text that is too long, and a byte of a header are overwritten. The place is reported, and nearly all other
    blocks are still read."""
    flags = ("-DCONTEXT",) if version == HERE else ()
    with run_program(compiled(version, "static", "musl_caches", *flags), tmp_path, letter) as (output, allocator, directory):
        block, place = damage(output)
        problems = [problem for problem in (*allocator.problems, *allocator.verify(directory.blocks)) if problem and problem.corrupt]
        assert problems
        assert min(abs(_where(problem) - place) for problem in problems) <= 16, problems
        # In oldmalloc: the chunk of the block
        assert any(f"{name:#x}" in problem.what for problem in problems for name in (block, block - 16))
        assert len(problems) <= 6
        wanted = program_blocks(output)
        blocks = directory.blocks
        right = sum(blocks.address(index) == address for address in wanted for index in [blocks.find(address)] if index >= 0)
        assert right >= len(wanted) - 2


def _where(problem: Problem) -> int:
    return problem.damaged.start if problem.damaged else problem.address


def test_a_write_after_free_is_found_in_oldmalloc(compiled, tmp_path: Path) -> None:
    """The write destroyed the links of a free chunk, so the list of its bin ends there."""
    with run_program(compiled(HERE_OLD, "static", "musl_caches"), tmp_path, "f") as (output, allocator, directory):
        block, _ = damage(output)
        problems = [problem for problem in allocator.verify(directory.blocks) if problem]
        assert any(f"{block - 16:#x}" in problem.what for problem in problems), problems


def test_verify_quotes_the_written_text(compiled, tmp_path: Path) -> None:
    """`verify` on an overrun: status 1, the block and the text that was written."""
    with cores.Running([str(compiled(HERE, "static", "musl_caches", "-DCONTEXT")), "t"], tmp_path) as running:
        block, _ = damage(running.output)
        done = run_cli("verify", "--json", str(running.kernel_core()))
    assert done.returncode == 1, done.stderr
    reported = json.loads(done.stdout)
    assert reported["sound"] is False
    assert any(f"{block:#x}" in problem["what"] for problem in reported["problems"])
    assert any("the block it was copied to" in (problem["written"] or {}).get("text", "") for problem in reported["problems"])


# By argument of the program: the signal, the function, and a pattern of the text. {order} is the address of a block.
CRASHES = {
    "twice": ("SIGSEGV", "release", r"free\(\) was called with {order}: a free .*loaded from orders"),
    "interior": ("SIGSEGV", "release", r"free\(\) was called with .*16 bytes into a reachable .* at {order} .*not the start of a block"),
    "assert": ("SIGABRT", "check_order", r"Assertion failed: one->number == 3 \(.*musl_crashes\.c: check_order: \d+\)"),
}


@pytest.mark.parametrize("link", ["dynamic", pytest.param("static", marks=pytest.mark.matrix)])
@pytest.mark.parametrize("word", [*CRASHES, "abort"])
def test_crashes_in_libc(compiled, word: str, link: str, tmp_path: Path) -> None:
    """musl's libc has no call frame information, and keeps no message."""
    core, printed = run_until_crash([str(compiled(HERE, link, "musl_crashes", "-O1", "-g", "-Wl,--eh-frame-hdr")), word], tmp_path)
    body = json.loads(run_cli("verdict", "--json", str(core)).stdout)
    if word == "abort":
        assert any(re.search(r"SIGABRT in stop .*, which called abort\(\) without", note) for note in body["notes"]), body["notes"]
        return
    found, (signal, function, pattern) = body["findings"][0], CRASHES[word]
    assert (found["finding"], found["evidence"]["signal"]) == ("crash", signal)
    assert f" in {function} (" in found["text"]
    assert re.search(pattern.replace("{order}", printed.split("=")[1].strip()), f"{found['text']} {found['cause']}"), found
