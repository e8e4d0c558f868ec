"""A thread stopped at any instruction of malloc and free: no leak, no warning and no damage is reported.

In tests/programs/in_flight.c, each block is always referenced from a global variable or used by the call that frees it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import building
import mallocs_musl
import mallocs_scudo
import mallocs_tcmalloc
import pytest
from counts import until
from debuggers import run_cli
from stepping import Stepped
from truth import PROGRAMS

from findleaks.allocators.glibc.instance import Glibc
from findleaks.allocators.scudo.instance import Scudo
from findleaks.audit.diagnostics import is_trusted
from findleaks.commands import verify
from findleaks.engine.terms import Kind
from findleaks.session import Session
from findleaks.target.copied import attach
from findleaks.target.core import open_core

SOURCE = PROGRAMS / "in_flight.c"
FLAGS = ("-O2", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread")
JEMALLOC = {"LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"}
CALLS = ("small", "several", "large", "mapped", "resized", "cleared", "aligned", "grown")
MATRIX = pytest.mark.matrix

SEGV, ABRT = (11, 0, 1), (6, 0, -6)  # si_signo, si_errno, si_code


program = building.fixture("in_flight.c", *FLAGS)


def list_errors(session: Session) -> list[str]:
    """Return all errors of a result that should have none."""
    graph = session.graph()
    lost = {kind.name: graph.totals(kind).blocks for kind in (Kind.DEFINITE, Kind.INDIRECT, Kind.POSSIBLE)}
    found = [f"{count} {name}" for name, count in lost.items() if count]
    if not is_trusted(session):
        found += ["not trusted", *(problem.what for problem in session.directory.problems)]
    result = verify.verify.run(session, argparse.Namespace(allocator=None, limit=10))
    if result.status:
        found += [f"verify: {result.status}", *(problem["what"] for problem in next(iter(result.json()))["problems"])]  # type: ignore[attr-defined]
    return found


def step_through(program: Path, calls: str, every: int, environment: Mapping[str, str]) -> None:
    """Run findleaks before every `every`-th instruction of the calls."""
    looks, inside, found = 0, 0, {}
    with Stepped([str(program), "step", calls], {**os.environ, **environment}) as stepped:
        for step in stepped.steps(every):
            session = stepped.session()
            try:
                said = list_errors(session)
                if said:
                    found[step] = said
                looks, inside = looks + 1, inside + bool(session.inside)
            finally:
                session.close()
    assert looks > 5 and inside > looks // 2, "the program was not stopped inside its allocator"
    assert found == {}


@pytest.mark.parametrize(("calls", "every"), [("small", 17), ("large", 251), ("mapped", 311)])
def test_any_instruction_of_glibc(program: Path, calls: str, every: int) -> None:
    step_through(program, calls, every, {})


def test_instructions_of_jemalloc(program: Path) -> None:
    step_through(program, "several", 1531, JEMALLOC)


def test_instructions_of_scudo(program: Path) -> None:
    step_through(program, "small", 61, mallocs_scudo.preload_environment(mallocs_scudo.INSTALLED))


def test_a_count_before_its_block(program: Path) -> None:
    """scudo counts a block that a thread returns before it stores the address. The word has an earlier address until then: here, that of a
    block in use of which the thread has no address."""
    with Stepped([str(program), "step", "small"], {**os.environ, **mallocs_scudo.preload_environment(mallocs_scudo.INSTALLED)}) as stepped:
        session = stepped.session()
        (scudo,) = (one for one in session.directory.allocators if isinstance(one, Scudo))
        blocks, number = session.directory.blocks, 2  # the class of blocks of 24 bytes
        counts = [space.start + 256 * number for space in scudo.thread_blocks.memory]
        other = next(block for block in map(blocks.address, range(len(blocks))) if blocks.size(blocks.find(block)) == 16 + 24 * 11)
        session.close()
        before = [stepped.read(count) & 0xFFFF for count in counts]
        for _ in stepped.steps():
            for count, old in zip(counts, before):
                new = stepped.read(count) & 0xFFFF
                if new > old:
                    stepped.write(count + 16 + 8 * (new - 1), other - 16)
                    session = stepped.session()
                    assert list_errors(session) == []
                    session.close()
                    return
            before = [stepped.read(count) & 0xFFFF for count in counts]
    raise AssertionError("no block was returned to a thread cache")


@MATRIX
@pytest.mark.parametrize("calls", CALLS)
def test_all_instructions_of_scudo(program: Path, calls: str) -> None:
    step_through(program, calls, 1 if calls == "small" else 7, mallocs_scudo.preload_environment(mallocs_scudo.INSTALLED))


@MATRIX
@pytest.mark.parametrize("calls", CALLS)
def test_all_instructions_of_glibc(program: Path, calls: str) -> None:
    step_through(program, calls, 1 if calls == "small" else 7, {})


@MATRIX
@pytest.mark.parametrize("calls", CALLS)
def test_all_instructions_of_jemalloc(program: Path, calls: str) -> None:
    step_through(program, calls, 1 if calls == "small" else 7, JEMALLOC)


@MATRIX
@pytest.mark.parametrize("calls", CALLS)
def test_all_instructions_of_tcmalloc(calls: str, tmp_path: Path) -> None:
    one = mallocs_tcmalloc.get("2.10")
    step_through(one.compile(SOURCE, tmp_path / "in_flight", FLAGS), calls, 1 if calls == "small" else 7, one.environment())


@MATRIX
@pytest.mark.parametrize("calls", CALLS)
def test_all_instructions_of_musl(calls: str, tmp_path: Path) -> None:
    program = mallocs_musl.get("1.2.5").compile(SOURCE, tmp_path / "in_flight", "dynamic", *FLAGS)
    step_through(program, calls, 1 if calls == "small" else 7, {})


def step_to_hidden_block(stepped: Stepped) -> int:
    """Step to the first instruction where only registers or the stack of free() refer to a block. Return the address of the block."""
    for _ in stepped.steps(16):
        session = stepped.session()
        try:
            with_, session.inside = session.in_flight, []
            del session.__dict__["in_flight"]
            graph = session.graph()
            lost = [session.directory.blocks.address(index) for index, kind in enumerate(graph.kinds()) if kind == Kind.DEFINITE]
            if lost and lost[0] in with_:
                return lost[0]
        finally:
            session.close()
    raise AssertionError("no block was in flight")


def run_json(*words: str) -> dict[str, Any]:
    done = run_cli(*words, "--json")
    assert done.returncode in (0, 1, 2), done.stderr
    return dict(json.loads(done.stdout))


def test_core_during_free(program: Path, tmp_path: Path) -> None:
    """findleaks names the register or stack word that refers to the block. A thread that crashed there counts as not in free()."""
    with Stepped([str(program), "step", "small"]) as stepped:
        block = step_to_hidden_block(stepped)
        core = stepped.core(tmp_path / "core")
        crashed = stepped.core(tmp_path / "crashed", SEGV)
        aborted = stepped.core(tmp_path / "aborted", ABRT)
        killed = stepped.core(tmp_path / "killed", (11, 0, 0))
        tid = stepped.process.pid
    found = run_json("find", str(core))
    assert found["trusted"] and found["groups"] == []
    assert found["in_flight"]["blocks"] >= 1 and [one["thread"] for one in found["in_flight"]["threads"]] == [tid]
    said = run_json("whatis", hex(block), str(core))["answers"][0]
    assert said["block"]["kind"] == "reachable" and f"in flight: thread {tid} is in libc.so.6 (" in said["text"]
    assert run_json("refs", hex(block), str(core))["target"]["text"] == said["text"]
    text = run_cli("find", str(core), check=True).stdout
    assert "1 thread was stopped inside malloc or free: " in text
    for one in (crashed, aborted):
        assert run_json("find", str(one))["in_flight"]["threads"] == []
    assert run_json("find", str(killed))["in_flight"] == found["in_flight"]


def step_to_partial_change(stepped: Stepped) -> None:
    """Step to an instruction where the heap is only partly changed."""
    for step in stepped.steps(5):
        session = stepped.session()
        try:
            session.directory  # noqa: B018
            if session.directory.half_changed and step:
                return
        finally:
            session.close()
    raise AssertionError("the heap was whole at all times")


def test_damage_elsewhere_is_reported(program: Path, tmp_path: Path) -> None:
    """The test overwrites the size of another block. The thread inside malloc does not use this block. findleaks reports the damage."""
    with Stepped([str(program), "step", "large"]) as stepped:
        step_to_partial_change(stepped)
        session = stepped.session()
        blocks = session.directory.blocks
        first = session.in_flight
        index = next(index for index in range(8, len(blocks)) if blocks.address(index) not in first and blocks.size(index) == 24)
        header = blocks.address(index) - 8
        session.close()
        stepped.write(header, 0x4141414141414141)
        session = stepped.session()
        said = [problem for problem in session.directory.problems if "AAAAAAAA" in problem.what]
        assert len(said) == 1 and said[0].corrupt and session.directory.half_changed
        assert not is_trusted(session)
        session.close()


def test_a_live_process_is_read_again(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the heap is inconsistent and no thread is inside the allocator, findleaks lets the process run and reads it again, a few times
    at most."""
    monkeypatch.setattr(Glibc, "is_changing", lambda *_: False)
    with Stepped([str(program), "step", "large"]) as stepped:
        monkeypatch.undo()
        step_to_partial_change(stepped)
        monkeypatch.setattr(Glibc, "is_changing", lambda *_: False)
        session = stepped.session(onward=lambda: stepped.go(400))
        session.directory  # noqa: B018
        assert session.directory.problems == [] and 1 < session.reads <= 5
        session.close()
    with Stepped([str(program), "step", "large"]) as stepped:
        monkeypatch.undo()
        step_to_partial_change(stepped)
        monkeypatch.setattr(Glibc, "is_changing", lambda *_: False)
        calls: list[int] = []
        session = stepped.session(onward=lambda: calls.append(1))
        assert session.directory.problems != [] and session.reads == 5 and len(calls) == 4
        session.close()


def test_process_runs_between_reads(program: Path) -> None:
    with subprocess.Popen([str(program), "spin", "2"], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            with attach(process.pid) as target:
                used = sum(ticks(process.pid, thread.tid) for thread in target.threads())
                until(lambda: target.run_on(0.1) and sum(ticks(process.pid, thread.tid) for thread in target.threads()) > used, "it to run")
                assert target.read(target.threads()[0].sp, 8)
        finally:
            process.kill()


def ticks(pid: int, tid: int) -> int:
    """Return the nanoseconds that a thread has run, from the scheduler."""
    return int(Path(f"/proc/{pid}/task/{tid}/schedstat").read_text().split()[0])


def test_version_comes_from_the_file(program: Path, tmp_path: Path) -> None:
    """The name of the file says 2.17, but its structures are those of a later release, as in RHEL 7. The core does not contain the version
    string of the file."""
    with Stepped([str(program), "step", "small"]) as stepped:
        core = stepped.core(tmp_path / "core", old="/libc.so.6", new="/libc-2.17.so")
        other = stepped.core(tmp_path / "other", old="/libc.so.6", new="/libc-old.so")
    for path in (core, other):
        path.write_bytes(path.read_bytes().replace(b"GNU C Library", b"GNU X Library"))
    with open_core(str(core)) as target:
        allocator = Session(target).directory.allocators[0]
        assert (allocator.version, allocator.where) == ("2.17", "libc-2.17.so")
    with open_core(str(other)) as target:
        version = Session(target).directory.allocators[0].version
        assert "-" in version or version.endswith("or newer")
