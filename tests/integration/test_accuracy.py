"""findleaks reports the correct state of every block of tests/programs/truth.c, which prints the state that it expects for each block."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import evidence
import libcs
import pytest
import truth
from accuracy import FLAGS, SOURCE, check, own_files
from debuggers import run_cli
from variants import mark_matrix_except

import cores

LINKS = {"dynamic": ("-O1",), "optimised": ("-O2",), "static": ("-O2", "-static"), "static-pie": ("-O1", "-static-pie")}
LIKE_MALLOCS = "a mapping like malloc's"
OPTIONS = {
    "further heaps": "h",
    "break blocked": "b",
    "foreign sbrk": "s",
    "full-size stacks": "d",
    "trimmed": "t",
    LIKE_MALLOCS: "f",
}
KEPT = ("no thread cache", "one arena", "small mmap threshold", "perturbed")
"""Environments; `make test` runs each of them with this machine's glibc."""
ENVIRONMENTS = {
    "no thread cache": {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"},
    "small thread cache": {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=2:glibc.malloc.tcache_max=100"},
    "one arena": {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1"},
    "two arenas": {"MALLOC_ARENA_MAX": "2"},
    "small mmap threshold": {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=4096"},
    "no fastbins": {"GLIBC_TUNABLES": "glibc.malloc.mxfast=0"},
    "perturbed": {"GLIBC_TUNABLES": "glibc.malloc.perturb=165"},
    "huge pages advised": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    "other heap size": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=2"},
}


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory):
    """Build the program once for each libc ("" is the host's) and each way to link it."""
    made: dict[tuple[str, str], Path] = {}
    folder = tmp_path_factory.mktemp("programs")

    def build(libc: str = "", link: str = "dynamic") -> Path:
        if (libc, link) not in made:
            output = folder / f"truth-{libc or 'host'}-{link}"
            flags = (*FLAGS, *LINKS[link])
            if libc:
                libcs.get(libc).compile(SOURCE, output, flags)
            else:
                subprocess.run(["gcc", *flags, "-o", str(output), str(SOURCE), "-pthread"], check=True)
            made[libc, link] = output
        return made[libc, link]

    return build


@pytest.mark.platform("x86-64", "cores, on the command line", "live, on the command line", "cores of gcore")
@pytest.mark.parametrize("picture", ["kernel", "gcore", "live"])
def test_five_threads(build, tmp_path: Path, picture: str) -> None:
    check(build(), tmp_path, 5, picture)


@pytest.mark.parametrize("picture", ["kernel", pytest.param("gcore", marks=pytest.mark.matrix), "live"])
def test_thirty_three_threads(build, tmp_path: Path, picture: str) -> None:
    check(build(link="optimised"), tmp_path, 33, picture)


@pytest.mark.platform("x86-64", "glibc, static programs")
@pytest.mark.parametrize("link", ["static", "static-pie"])
def test_static_programs(build, tmp_path: Path, link: str) -> None:
    check(build(link=link), tmp_path, 5, "kernel")


@pytest.mark.parametrize("options", mark_matrix_except(OPTIONS, "further heaps", "break blocked", "foreign sbrk", LIKE_MALLOCS))
def test_heaps_of_other_shapes(build, tmp_path: Path, options: str) -> None:
    check(build(), tmp_path, 3, "kernel", options, scale=2)


@pytest.mark.parametrize("options", ["b", "s"], ids=["break blocked", "foreign sbrk"])
@pytest.mark.parametrize("link", ["static", "static-pie"])
@pytest.mark.parametrize("version", [pytest.param("", id="host"), *(pytest.param(v, marks=pytest.mark.matrix) for v in libcs.SUITES)])
def test_tls_at_the_start_of_the_break(build, tmp_path: Path, version: str, link: str, options: str) -> None:
    """The TLS of a static program is at the start of the program break, so the first chunk of malloc is not at the start of a page."""
    check(build(version, link), tmp_path, 5, "kernel", options, scale=2)


@pytest.mark.parametrize("environment", mark_matrix_except(ENVIRONMENTS, *KEPT))
def test_malloc_settings(build, tmp_path: Path, environment: dict[str, str]) -> None:
    check(build(), tmp_path, 5, "kernel", "", 1, **environment)


@pytest.mark.platform("x86-64", "glibc", of="2.31 to 2.43")
@pytest.mark.parametrize("threads", mark_matrix_except({"one thread": 1, "five threads": 5}, "five threads"))
@pytest.mark.parametrize("version", mark_matrix_except(libcs.SUITES.keys(), "2.31", "2.43"))
def test_other_libcs(build, tmp_path: Path, version: str, threads: int) -> None:
    """Only one thread is left. No other thread refers to the memory that libc keeps of threads that have ended."""
    check(build(version), tmp_path, threads, "kernel")


@pytest.mark.parametrize("version", mark_matrix_except({"host": "", **{version: version for version in libcs.SUITES}}, "host", "2.43"))
def test_thread_local_storage_of_plugins(tmp_path: Path, version: str) -> None:
    """libc allocates blocks for the TLS of libraries that dlopen loads; the DTVs refer to these blocks. dlopen also allocates and
    keeps other blocks."""
    source, library, program = truth.PROGRAMS / "dynamic_tls.c", tmp_path / "library.so", tmp_path / "program"
    subprocess.run(["gcc", *FLAGS, "-shared", "-fPIC", "-DLIBRARY", "-o", str(library), str(source)], check=True)
    if version:
        libcs.get(version).compile(source, program, (*FLAGS, "-O1"))
    else:
        subprocess.run(["gcc", *FLAGS, "-O1", "-o", str(program), str(source), "-pthread", "-ldl"], check=True)
    with cores.Running([str(program), str(library)], tmp_path / "run") as running:
        records = truth.parse(running.output)
        core = running.kernel_core()
    blocks, _ = truth.ask(str(core))
    verdict = evidence.explain(truth.compare(records, blocks), records, blocks, core, (program.name, library.name))
    assert len(records) == 4 * 4
    assert verdict.perfect, str(verdict)


@pytest.mark.parametrize("version", mark_matrix_except({"host": "", **{version: version for version in libcs.SUITES}}, "host", "2.43"))
def test_stale_words_in_memory_of_the_loader(tmp_path: Path, version: str) -> None:
    """ld.so does not clear its table of loaded files, and the blocks of their names."""
    source, library, program = truth.PROGRAMS / "stale_loader.c", tmp_path / "library.so", tmp_path / "program"
    subprocess.run(["gcc", *FLAGS, "-shared", "-fPIC", "-DLIBRARY", "-o", str(library), str(source)], check=True)
    if version:
        libcs.get(version).compile(source, program, (*FLAGS, "-O1"))
    else:
        subprocess.run(["gcc", *FLAGS, "-O1", "-o", str(program), str(source), "-ldl"], check=True)
    with cores.Running([str(program), str(library)], tmp_path / "run") as running:
        (lost,) = truth.parse(running.output)
        blocks, _ = truth.ask(str(running.kernel_core()))
    assert [one["kind"] for one in blocks if int(one["address"], 16) == lost.address] == ["definite"]


def test_a_core_without_the_stacks_is_not_trusted(build, tmp_path: Path) -> None:
    """GDB 13's gcore drops a mapping at the first page that it cannot read, such as the guard pages of stacks in glibc 2.42 and later.
    findleaks warns about the missing stacks."""
    with cores.Running([str(build("2.43")), "5", "1", "1"], tmp_path) as running:
        records = truth.parse(running.output)
        core = running.gcore()
        blocks, warnings = truth.ask(str(core))
    reported = [warning for warning in warnings if "all zeros in this core" in warning]
    assert bool(reported) != truth.compare(records, blocks).perfect, warnings
    found = run_cli("find", "--json", str(core), check=True)
    assert json.loads(found.stdout)["trusted"] is not bool(reported)


@pytest.mark.matrix
@pytest.mark.parametrize("threads", [5, 33])
@pytest.mark.parametrize("picture", ["kernel", "gcore", "live"])
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("version", libcs.SUITES)
def test_every_libc_link_and_picture(build, tmp_path: Path, version: str, link: str, picture: str, threads: int) -> None:
    if (version, picture) == ("2.43", "gcore"):
        picture = "live"  # see test_a_core_without_the_stacks_is_not_trusted
    check(build(version, link), tmp_path, threads, picture)


@pytest.mark.matrix
@pytest.mark.parametrize("options", [*OPTIONS.values(), "hs"])
@pytest.mark.parametrize("environment", [{}, *ENVIRONMENTS.values()], ids=["plain", *ENVIRONMENTS])
@pytest.mark.parametrize("version", libcs.SUITES)
def test_every_libc_and_setting(build, tmp_path: Path, version: str, environment: dict[str, str], options: str) -> None:
    check(build(version), tmp_path, 7, "kernel", options, 3, **environment)


class LeakSanitizer(NamedTuple):
    """Parsed output of LeakSanitizer: leaked blocks as {address: "Direct" or "Indirect"}, and for each other block the reference through
    which it was found."""

    leaked: dict[int, str]
    found_by: dict[int, tuple[str, int]]
    """A dictionary from the start address of a block to the kind of memory and the address of the first word that points into the block."""


def read_report(report: str) -> LeakSanitizer:
    leaked: dict[int, str] = {}
    found_by: dict[int, tuple[str, int]] = {}
    kind = memory = ""
    for line in report.splitlines():
        if found := re.match(r"(Direct|Indirect) leak of ", line):
            kind = found[1]
        elif found := re.match(r"(0x[0-9a-f]+) \(\d+ bytes\)", line):
            leaked[int(found[1], 16)] = kind
        elif found := re.search(r"Scanning (.+) range 0x", line):
            memory = found[1]
        elif found := re.search(r"(0x[0-9a-f]+): found 0x[0-9a-f]+ pointing into chunk (0x[0-9a-f]+)-", line):
            found_by.setdefault(int(found[2], 16), (memory, int(found[1], 16)))
    return LeakSanitizer(leaked, found_by)


def classify_by_lsan_rules(record: truth.Record, lost: bool, definite: bool) -> str:
    """Return "Direct" or "Indirect" as LeakSanitizer would report the block, or "" if LeakSanitizer does not report it."""
    if record.category in ("mapping", "red-zone") or (definite and record.category != "cycle"):
        return "Direct"
    return "Indirect" if lost else ""


@pytest.mark.parametrize("threads", mark_matrix_except([5, 33], 5))
@pytest.mark.parametrize("compiler", ["gcc", "clang-19"])
def test_leak_sanitizer_agrees(build, tmp_path: Path, compiler: str, threads: int) -> None:
    """findleaks and LeakSanitizer report the same leaks, except for differences that follow from LeakSanitizer's rules.

    - An interior pointer keeps a block alive, so a block that findleaks calls possibly lost is not a leak.
    - All blocks of a leaked cycle are indirect. findleaks reports one of them as the leak head.
    - Mappings that the program made itself, and the red zone below a stack pointer, are not scanned.
    - Sizes are those that the program requested (1 for 0), so the list of the program is converted.
    - All registers are roots, also dead registers and vector registers. If the log of LeakSanitizer shows that it reached a lost block
      through a register or a word on a stack, a difference is accepted.
    """
    program = tmp_path / "sanitized"
    subprocess.run([compiler, *FLAGS, "-O1", "-fsanitize=leak", "-o", str(program), str(SOURCE), "-pthread"], check=True)
    environment = {**os.environ, "LSAN_OPTIONS": "report_objects=1:log_pointers=1:log_threads=1"}
    done = subprocess.run([str(program), str(threads), "1", "1", "l"], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 23, done.stderr[-2000:]  # LeakSanitizer's exit status when there are leaks
    report, listed = read_report(done.stderr), {record.address: record for record in truth.parse(done.stdout + "ready\n")}
    excused = find_blocks_held_by_stale_words(report, listed)
    theirs = Counter((kind, max(listed[at].requested, 1)) for at, kind in [*report.leaked.items(), *excused.items()])
    with cores.Running([str(build()), str(threads), "1", "1", "m"], tmp_path / "run") as running:
        records = {record.address: record for record in truth.parse(running.output)}
        core = running.kernel_core()
    blocks, _ = truth.ask(str(core))
    found = truth.compare([*records.values()], blocks)
    explained = evidence.explain(found, [*records.values()], blocks, core, own_files(build()))
    by_stale_words = {record.address for record, _ in found.held} - {record.address for record, _ in explained.held}
    ours: Counter[tuple[str, int]] = Counter()
    for block in blocks:
        record = records.get(int(block["address"], 16))
        if record is None or block["state"] != "in-use":
            continue
        called = record.kind if record.address in by_stale_words else block["kind"]
        kind = classify_by_lsan_rules(record, called in truth.LOST, called == "definite")
        if kind:
            ours[kind, max(record.requested, 1)] += 1
    assert sum(ours.values()) > 1000
    assert ours == theirs


def find_blocks_held_by_stale_words(report: LeakSanitizer, listed: dict[int, truth.Record]) -> dict[int, str]:
    """Return the few lost blocks that LeakSanitizer reached through a register, a word on a stack, or another block in this list."""
    kinds = {
        at: classify_by_lsan_rules(one, one.kind in truth.LOST, one.kind == "definite")
        for at, one in listed.items()
        if one.state == "in-use"
    }
    missed = {at: kind for at, kind in kinds.items() if kind and at not in report.leaked}
    held = {at for at in missed if report.found_by.get(at, ("", 0))[0] in ("REGISTERS", "STACK")}
    assert len(held) <= evidence.MOST
    grown = True
    while grown:
        inside = [range(at, listed[at].end) for at in held]
        more = {at for at in missed.keys() - held if any(report.found_by.get(at, ("", 0))[1] in one for one in inside)}
        grown = bool(more)
        held |= more
    return {at: missed[at] for at in held}
