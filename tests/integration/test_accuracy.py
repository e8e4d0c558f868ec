"""Every block of a program that knows the truth about itself (tests/programs/truth.c) is called what it is: none false, none missed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import libcs
import pytest
import truth
from accuracy import FLAGS, SOURCE, check

import cores

LINKS = {"dynamic": ("-O1",), "optimised": ("-O2",), "static": ("-O2", "-static"), "static-pie": ("-O1", "-static-pie")}
OPTIONS = {
    "further heaps": "h",
    "break blocked": "b",
    "foreign sbrk": "s",
    "full-size stacks": "d",
    "trimmed": "t",
    "a mapping like malloc's": "f",
}
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
    """Builds the program once for each libc ("" is the host's) and way to link it."""
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


@pytest.mark.parametrize("picture", ["kernel", "gcore", "live"])
def test_five_threads(build, tmp_path: Path, picture: str) -> None:
    check(build(), tmp_path, 5, picture)


@pytest.mark.parametrize("picture", ["kernel", pytest.param("gcore", marks=pytest.mark.matrix), "live"])
def test_thirty_three_threads(build, tmp_path: Path, picture: str) -> None:
    check(build(link="optimised"), tmp_path, 33, picture)


@pytest.mark.parametrize("link", ["static", "static-pie"])
def test_static_programs(build, tmp_path: Path, link: str) -> None:
    check(build(link=link), tmp_path, 5, "kernel")


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_heaps_of_other_shapes(build, tmp_path: Path, options: str) -> None:
    check(build(), tmp_path, 3, "kernel", options, scale=2)


@pytest.mark.parametrize("options", ["b", "s"], ids=["break blocked", "foreign sbrk"])
@pytest.mark.parametrize("link", ["static", "static-pie"])
@pytest.mark.parametrize("version", [pytest.param("", id="host"), *(pytest.param(v, marks=pytest.mark.matrix) for v in libcs.SUITES)])
def test_breaks_that_begin_with_storage_of_threads(build, tmp_path: Path, version: str, link: str, options: str) -> None:
    """A static program's TLS stands where the break began: malloc's part does not start at a page."""
    check(build(version, link), tmp_path, 5, "kernel", options, scale=2)


@pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_malloc_set_up_otherwise(build, tmp_path: Path, environment: dict[str, str]) -> None:
    check(build(), tmp_path, 5, "kernel", "", 1, **environment)


@pytest.mark.parametrize("threads", [1, 5], ids=["one thread", "five threads"])
@pytest.mark.parametrize("version", libcs.SUITES)
def test_other_libcs(build, tmp_path: Path, version: str, threads: int) -> None:
    """With one thread left, what libc keeps of those that ended is named by no other thread."""
    check(build(version), tmp_path, threads, "kernel")


@pytest.mark.parametrize("version", ["", *libcs.SUITES], ids=lambda version: version or "host")
def test_thread_local_storage_of_plugins(tmp_path: Path, version: str) -> None:
    """dlopen'ed libraries' TLS stands in blocks of libc's own, which are held by the DTVs; and dlopen leaves more of its own."""
    source, library, program = truth.PROGRAMS / "dynamic_tls.c", tmp_path / "library.so", tmp_path / "program"
    subprocess.run(["gcc", *FLAGS, "-shared", "-fPIC", "-DLIBRARY", "-o", str(library), str(source)], check=True)
    if version:
        libcs.get(version).compile(source, program, (*FLAGS, "-O1"))
    else:
        subprocess.run(["gcc", *FLAGS, "-O1", "-o", str(program), str(source), "-pthread", "-ldl"], check=True)
    with cores.Running([str(program), str(library)], tmp_path / "run") as running:
        records = truth.parse(running.output)
        blocks, _ = truth.ask(str(running.kernel_core()))
    verdict = truth.compare(records, blocks)
    assert len(records) == 4 * 4
    assert verdict.perfect, str(verdict)


def test_a_core_without_the_stacks_is_not_trusted(build, tmp_path: Path) -> None:
    """GDB 13's gcore gives a mapping up at the first page it cannot read, as glibc 2.42 and later guard stacks with. findleaks says so."""
    with cores.Running([str(build("2.43")), "5", "1", "1"], tmp_path) as running:
        records = truth.parse(running.output)
        core = running.gcore()
        blocks, warnings = truth.ask(str(core))
    told = [warning for warning in warnings if "all zeros in this core" in warning]
    assert bool(told) != truth.compare(records, blocks).perfect, warnings
    found = subprocess.run([sys.executable, "-m", "findleaks", "find", "--json", str(core)], capture_output=True, text=True, check=True)
    assert json.loads(found.stdout)["trusted"] is not bool(told)


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


def totals(kind: str, report: str) -> list[int]:
    """[bytes, blocks] of LeakSanitizer's direct or indirect leaks."""
    leaks = re.findall(rf"^{kind} leak of (\d+) byte\(s\) in (\d+) object", report, re.M)
    return [sum(int(size) for size, _ in leaks), sum(int(count) for _, count in leaks)]


@pytest.mark.parametrize("threads", [5, 33])
@pytest.mark.parametrize("compiler", ["gcc", "clang-19"])
def test_leak_sanitizer_agrees(build, tmp_path: Path, compiler: str, threads: int) -> None:
    """LeakSanitizer's totals of the same program, less the differences that follow from its rules, are those of findleaks.

    Its rules: interior pointers keep a block alive (our "possible" is no leak to it); of a cycle all blocks are indirect (ours has
    one definite leader); it scans neither mappings that the program made itself nor the red zone below a stack pointer. Its sizes
    are those that were asked for (and 1 for 0), so the program's list translates.
    """
    program = tmp_path / "sanitized"
    subprocess.run([compiler, *FLAGS, "-O1", "-fsanitize=leak", "-o", str(program), str(SOURCE), "-pthread"], check=True)
    done = subprocess.run([str(program), str(threads), "1", "1", "l"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 23, done.stderr[-2000:]  # LeakSanitizer's exit status when there are leaks
    theirs = {kind: totals(kind, done.stderr) for kind in ("Direct", "Indirect")}
    with cores.Running([str(build()), str(threads), "1", "1", "m"], tmp_path / "run") as running:
        records = {record.address: record for record in truth.parse(running.output)}
        blocks, _ = truth.ask(str(running.kernel_core()))
    ours = {"Direct": [0, 0], "Indirect": [0, 0]}
    for block in blocks:
        record = records.get(int(block["address"], 16))
        if record is None or block["state"] != "in-use":
            continue
        if record.category in ("mapping", "red-zone") or (block["kind"] == "definite" and record.category != "cycle"):
            kind = "Direct"
        elif block["kind"] in truth.LOST:
            kind = "Indirect"
        else:
            continue
        ours[kind][0] += max(record.requested, 1)
        ours[kind][1] += 1
    assert ours == theirs
