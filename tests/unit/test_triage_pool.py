"""The processes that examine cores: if one of them fails, the rows of all other cores are there, and it leaves nothing."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from findleaks.triage import pool
from findleaks.triage.examine import Source
from findleaks.triage.pool import Limits, default_limits, estimate_memory, examine_all
from findleaks.triage.row import OK, Row

PLENTY = 1 << 40
LONG = 3.0
"""Seconds that are enough for a process that does nothing to end, even on a busy machine."""


def sources(*names: str) -> list[Source]:
    return [Source(name, name) for name in names]


@pytest.fixture
def acting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the examination of a core: the process does what the name of the core says, such as "exit" or "raise"."""

    def examine(source: Source, *_: object, **__: object) -> Row:
        if source.core.startswith("signal "):
            faulthandler.disable()  # pytest has enabled it
            os.kill(os.getpid(), int(source.core.split()[1]))
        if source.core == "exit":
            os._exit(3)
        if source.core.startswith("for ever"):
            while True:
                time.sleep(1)
        if source.core == "raise":
            raise RuntimeError
        return Row(source.core, OK, warnings=("x" * 1_000_000,) if source.core == "long" else ())

    monkeypatch.setattr(pool, "examine", examine)


@pytest.mark.usefixtures("acting")
@pytest.mark.parametrize("jobs", [1, 3])
def test_each_core_has_a_row(jobs: int) -> None:
    names = ["a", "signal 11", "exit", "long", "signal 9", "raise", "b"]
    rows = {row.core: row for _, row in examine_all(sources(*names), Limits(jobs, PLENTY, 0))}
    assert sorted(rows) == sorted(names)
    assert {name for name, row in rows.items() if row.status == OK} == {"a", "b", "long"}
    assert len(rows["long"].warnings[0]) == 1_000_000
    assert rows["signal 11"].error == "the process that read it was ended by SIGSEGV"
    assert "SIGKILL" in rows["signal 9"].error and "memory" in rows["signal 9"].error
    assert rows["exit"].error == rows["raise"].error == "the process that read it ended without a result"


@pytest.mark.usefixtures("acting")
def test_an_endless_examination_is_stopped() -> None:
    rows = {row.core: row for _, row in examine_all(sources("for ever", "a"), Limits(1, PLENTY, LONG))}
    assert rows["a"].status == OK and f"not finished after {LONG:g} s" in rows["for ever"].error
    assert rows["for ever"].seconds > LONG


@pytest.mark.usefixtures("acting")
def test_closing_stops_all_at_once() -> None:
    own = Path("/proc/self/cmdline").read_bytes()

    def children() -> set[str]:
        """Return the forked children. Processes that earlier tests started may become children of this process, and may
        end during the loop."""
        found: set[str] = set()
        for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            with suppress(OSError):
                found |= {pid} if Path(f"/proc/{pid}/cmdline").read_bytes() == own else set()
        return found

    every = examine_all(sources("a", "for ever", "for ever 2", "for ever"), Limits(4, PLENTY, 0))
    assert next(every)[1].core == "a"
    forked = children()
    assert len(forked) >= 2
    every.close()
    assert [pid for pid in forked if Path(f"/proc/{pid}").exists()] == []


@pytest.mark.usefixtures("acting")
def test_children_leave_a_ctrl_c_to_their_parent() -> None:
    rows = [row for _, row in examine_all(sources(f"signal {int(signal.SIGINT)}"), Limits(1, PLENTY, 0))]
    assert [row.status for row in rows] == [OK]


def test_memory_limits_the_number_of_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of a core is estimated by the space that it takes on the disk: holes take none."""
    full, hole, packed = tmp_path / "full", tmp_path / "hole", tmp_path / "packed.zst"
    full.write_bytes(b"x" * (8 << 20))
    packed.write_bytes(b"x" * (8 << 20))
    with hole.open("wb") as file:
        file.truncate(1 << 40)
    least = pool.LEAST_MEMORY
    assert estimate_memory(Source(str(full), "")) == pytest.approx(least + (4 << 20), rel=0.01)
    assert estimate_memory(Source(str(packed), "")) == pytest.approx(least + (16 << 20), rel=0.01)
    assert estimate_memory(Source(str(hole), "")) < least + (1 << 20)
    assert estimate_memory(Source("/no/such/file", "")) == least
    most = []
    start = pool._start

    def start_and_record(source: Source, limits: Limits):  # type: ignore[no-untyped-def]
        job, descriptor = start(source, limits)
        most.append(job.memory)
        return job, descriptor

    monkeypatch.setattr(pool, "_start", start_and_record)
    running = []
    monkeypatch.setattr(pool, "_fits", lambda source, now, limits, fits=pool._fits: running.append(len(now)) or fits(source, now, limits))
    files = [Source(str(full), str(at)) for at in range(6)]
    assert len(list(examine_all(files, Limits(6, 2 * least + (9 << 20), 0)))) == 6
    assert max(running) == 2 and len(most) == 6


def test_number_of_processes_depends_on_the_machine() -> None:
    processors = len(os.sched_getaffinity(0))
    assert default_limits(None, 1 << 40, 0).jobs == processors
    assert default_limits(None, 1, 0).jobs == 1
    assert default_limits(7, 1, 0).jobs == 7
    assert default_limits(None, None, 0).memory > 0
