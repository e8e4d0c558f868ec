"""Each kind of mapping in each kind of core. If only one mapping refers to a block, the block is reachable, or a warning names the
missing mapping and the result is not trusted."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import building
import debuggers
import hugepages
import pytest

from cores import Running
from findleaks import commands
from findleaks.session import Session
from findleaks.target.copied import attach
from findleaks.target.core import open_core
from findleaks.target.core_writer import write_core
from findleaks.target.image_target import ImageTarget
from findleaks.target.live import LiveTarget

PRIVATE = ("private", "read-only", "closed", "excluded", "closed-excluded", "memfd-private", "file-private")
ANONYMOUS = ("shared", "shared-closed", "shared-excluded", "memfd", "memfd-closed", "shm-deleted", "sysv")
SHARED = (*ANONYMOUS, "shm", "file-shared", "file-deleted")
NAMES = {"shared": "/dev/zero", "huge": "/anon_hugepage", "memfd": "/memfd:only_pointers", "sysv": "/SYSV", "secret": "/secretmem"}
"""The names that the kernel uses for memory of these kinds."""

# Kinds of mappings that this core writer omits with the default filter (0x33).
LACKED = {
    "live": (),
    "stopped": (),
    "own": ("excluded", "closed-excluded", "shared-excluded"),
    "kernel": ("excluded", "closed-excluded", "shared-excluded", "shm", "file-shared"),
    "gcore": ("excluded", "closed-excluded", "shared-excluded", "shm", "file-shared"),
    "full": ("closed", "closed-excluded", "shared-closed", "memfd-closed"),
    "modified-memory": ("read-only", "closed", "closed-excluded", "shared-closed", "memfd-closed"),
}
ALSO_UNTRUSTED = ("full", "modified-memory")  # minidumps of LLDB lack some vector registers


class Seen(NamedTuple):
    """The results for a program in one kind of core, or live."""

    kinds: dict[str, set[str]]  # by kind of mapping: kinds of blocks that it refers to; "lost": kinds of lost blocks
    trusted: bool
    warnings: list[str]


class Program(NamedTuple):
    """What the program prints: blocks and address ranges by kind of mapping."""

    blocks: dict[str, list[int]]
    bounds: dict[str, tuple[int, int]]
    run: Running


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program("gcc", tmp_path_factory.mktemp("program"))


def compile_program(compiler: str, folder: Path) -> Path:
    return building.compile_program(folder, "only_pointers.c", "-std=gnu11", "-g", "-O1", compiler=compiler)


@contextmanager
def start_program(program: Path, folder: Path, kinds: Sequence[str]) -> Iterator[Program]:
    """Start the program with these kinds of mappings. Its shared-memory file is removed at the end."""
    with Running([str(program), *kinds], folder / "run") as run:
        try:
            account = parse_output(run)
            assert set(account.bounds) == set(kinds)
            yield account
        finally:
            for file in Path("/dev/shm").glob(f"only_pointers-{run.pid}-*"):
                file.unlink()


def parse_output(run: Running) -> Program:
    blocks: dict[str, list[int]] = {}
    bounds: dict[str, tuple[int, int]] = {}
    for line in run.output.splitlines():
        word, *rest = line.split()
        if word == "block":
            blocks.setdefault(rest[0], []).append(int(rest[1], 16))
        elif word == "lost":
            blocks.setdefault("lost", []).append(int(rest[0], 16))
        elif word == "mapping":
            bounds[rest[0]] = int(rest[1], 16), int(rest[1], 16) + int(rest[2])
    return Program(blocks, bounds, run)


def run_command(session: Session, words: str) -> list[Any]:
    out = io.StringIO()
    commands.execute(lambda: session, [*words.split(), "--json"], out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def read_program(program: Program, target: ImageTarget) -> Seen:
    session = Session(target)
    (found,) = run_command(session, "find --limit 0")
    kinds = {int(row["address"], 16): row["kind"] for row in run_command(session, "blocks") if "address" in row}
    return Seen(
        {name: {kinds[address] for address in blocks} for name, blocks in program.blocks.items()}, found["trusted"], found["warnings"]
    )


def is_named(warning: str, kind: str, bounds: tuple[int, int]) -> bool:
    """Return whether a warning names this mapping, by its name or an address."""
    name = NAMES.get(kind.partition("-")[0], f"-{kind}" if kind.startswith("shm") else f"/{kind}")
    ranges = (text.split("-") for text in warning.replace("(", " ").replace(":", " ").replace(",", " ").replace(")", " ").split())
    parts = [(int(pair[0], 16), int(pair[1], 16)) for pair in ranges if len(pair) == 2 and all(end.startswith("0x") for end in pair)]
    return name in warning or any(start < bounds[1] and bounds[0] < end for start, end in parts)


def check_reachable(program: Program, found: Seen, lacked: tuple[str, ...]) -> None:
    """Check that blocks of each kind of mapping are reachable. For the kinds in `lacked`, a warning must name the mapping."""
    missing = {kind for kind, kinds in found.kinds.items() if kinds != {"reachable"}} - {"lost"}
    assert missing == set(lacked) & set(program.bounds), found
    assert found.kinds["lost"] == {"definite"}
    for kind in missing:
        assert not found.trusted
        assert any(is_named(warning, kind, program.bounds[kind]) for warning in found.warnings), (kind, found.warnings)


def pictures(program: Program, folder: Path, writers: tuple[str, ...]) -> Iterator[tuple[str, ImageTarget]]:
    """Read the program live and in each kind of core. The kernel's core is last, because it ends the program."""
    pid = program.run.pid
    for writer in writers:
        if writer == "live":
            yield writer, attach(pid)
        elif writer == "stopped":
            yield writer, LiveTarget(pid, stopped=False)
        elif writer == "own":
            with attach(pid) as copy:
                write_core(copy, str(folder / "own"))
            yield writer, open_core(str(folder / "own"))
        elif writer == "gcore":
            yield writer, open_core(str(program.run.gcore()))
        elif writer == "kernel":
            (program.run.folder / f"gcore.{pid}").unlink(missing_ok=True)
            yield writer, open_core(str(program.run.kernel_core()))
        else:
            save = f"process save-core --plugin-name=minidump --style {writer} {folder / writer}"
            debuggers.lldb([save, "detach"], "-p", str(pid))
            yield writer, open_core(str(folder / writer))


@pytest.mark.parametrize("kinds", [PRIVATE, SHARED], ids=["private", "shared"])
def test_every_kind_of_core(program: Path, tmp_path: Path, kinds: tuple[str, ...]) -> None:
    with start_program(program, tmp_path, kinds) as account:
        for writer, target in pictures(account, tmp_path, ("live", "stopped", "own", "gcore", "full", "modified-memory", "kernel")):
            with target:
                check_reachable(account, read_program(account, target), LACKED[writer])


@pytest.mark.parametrize("kinds", [("private", "excluded", "closed-excluded"), ("private", "memfd", "shm")], ids=["private", "shared"])
def test_i386(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    """A process of i386. Small numbers may look like its addresses."""
    with start_program(compile_program("i686-linux-gnu-gcc", tmp_path), tmp_path, kinds) as account:
        for writer, target in pictures(account, tmp_path, ("live", "gcore", "kernel")):
            with target:
                check_reachable(account, read_program(account, target), LACKED[writer])


def test_complete_cores_are_trusted(program: Path, tmp_path: Path) -> None:
    """If cores have all mappings, the result is trusted, and leaks are reported."""
    kinds = ("private", "read-only", "closed", "shared", "memfd", "memfd-closed", "file-private", "sysv")
    with start_program(program, tmp_path, kinds) as account:
        for writer, target in pictures(account, tmp_path, ("live", "stopped", "own", "gcore", "kernel")):
            with target:
                found = read_program(account, target)
                check_reachable(account, found, ())
                assert (found.trusted, found.warnings) == (True, []), writer


FILTERS = {
    "0x31": ("shared", "shared-closed", "memfd", "memfd-closed", "shm-deleted", "sysv", "file-deleted"),
    "0x3f": (),
    "0x03": (),
}
"""Filters of the kernel, and the kinds of mappings that cores also lack. 0x31 lacks anonymous shared memory. Filters with bit 3 replace the
default."""


@pytest.mark.parametrize("filter_", FILTERS)
def test_coredump_filter(program: Path, tmp_path: Path, filter_: str) -> None:
    """coredump_filter controls the cores that the kernel writes, and also the cores that gcore writes."""
    with start_program(program, tmp_path, SHARED) as account:
        Path(f"/proc/{account.run.pid}/coredump_filter").write_text(filter_)
        by_default = ("shared-excluded",) if int(filter_, 16) & 8 else LACKED["kernel"]
        for _, target in pictures(account, tmp_path, ("gcore", "kernel")):
            with target:
                check_reachable(account, read_program(account, target), (*by_default, *FILTERS[filter_]))


def test_every_front_end(program: Path, tmp_path: Path) -> None:
    """GDB, LLDB and the command line agree on a core that lacks memory, and on a live process with protected memory."""
    with start_program(program, tmp_path, ("excluded", "shm", "closed")) as account:
        pid = str(account.run.pid)
        live = [debuggers.gdb(["leaks find --json"], "-p", pid), debuggers.lldb(["leaks find --json", "detach"], "-p", pid)]
        core = str(account.run.gcore())
        told_apart = debuggers.findleaks("find", "--json", "--pid", pid)
    cores = [debuggers.gdb(["leaks find --json"], str(program), core), debuggers.lldb(["leaks find --json"], str(program), "-c", core)]

    def answer(output: str) -> tuple[int, bool, list[str]]:
        found = json.loads(debuggers.objects(output)[0])
        return found["totals"]["definite"]["blocks"], found["trusted"], found["warnings"]

    lost = len(account.blocks["lost"])
    assert [answer(output) for output in (*live, told_apart)] == [(lost, True, [])] * 3
    wanted = answer(debuggers.findleaks("find", "--json", core))
    assert (wanted[0], wanted[1], len(wanted[2])) == (lost + len(account.blocks["excluded"]) + len(account.blocks["shm"]), False, 2)
    assert [answer(output) for output in cores] == [wanted] * 2
    assert any(is_named(warning, "excluded", account.bounds["excluded"]) for warning in wanted[2])


HUGE = {"0x33": ("huge-shared",), "0x13": ("huge", "huge-shared"), "0x53": ("huge",)}
"""By filter (bits 5 and 6): the kinds that the kernel and gcore omit."""


@pytest.fixture
def huge_pages() -> Iterator[None]:
    """Reserve two huge pages for each mapping of huge pages."""
    with hugepages.reserve(4):
        yield


@pytest.mark.matrix
@pytest.mark.alone
@pytest.mark.usefixtures("huge_pages")
@pytest.mark.parametrize("filter_", HUGE)
def test_huge_pages(program: Path, tmp_path: Path, filter_: str) -> None:
    with start_program(program, tmp_path, ("huge", "huge-shared", "private")) as account:
        Path(f"/proc/{account.run.pid}/coredump_filter").write_text(filter_)
        for writer, target in pictures(account, tmp_path, ("live", "own", "gcore", "kernel")):
            with target:
                check_reachable(account, read_program(account, target), HUGE[filter_] if writer in ("gcore", "kernel") else ())
