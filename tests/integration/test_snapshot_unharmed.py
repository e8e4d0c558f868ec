"""A process is copied repeatedly while its threads work, and stays unchanged. test_forked.py does the same test with clones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import building
import pytest
from counting import wait_for
from debuggers import run_cli
from forked import THREADS, Watched, build, make_starter

from findleaks.target.copied import CopiedProcess

program = building.by(build)


@pytest.fixture
def busy(program: Path) -> Iterator[Watched]:
    """Start threads that use registers, flags, the red zone, malloc, child processes, signals, timers, pipes and locks. Each thread
    checks its own data."""
    with make_starter(program) as make:
        one = make("busy")
        assert wait_for(lambda: all(one.words("rounds")))
        yield one


def check(one: Watched, before: dict[str, object]) -> None:
    """Check that all threads continue without an error, and that /proc shows the same state as before."""
    rounds = one.words("rounds")
    assert wait_for(lambda: all(now > then for now, then in zip(one.words("rounds"), rounds)))
    assert dict(zip(THREADS, one.words("bad"))) == dict.fromkeys(THREADS, 0)
    assert one.words("foreign", 1) == [0]
    assert lasting(one) == before


def lasting(one: Watched) -> dict[str, object]:
    looks = one.looks()
    looks.pop("ShdPnd")  # for the children that the program forks
    return looks


def test_a_hundred_copies(busy: Watched) -> None:
    """The process is stopped and copied as in `snapshot` and `watch`. The analysis uses the copy."""
    before, ticks = lasting(busy), []
    for _ in range(100):
        with CopiedProcess(busy.pid) as copy:
            ticks.append(copy.word(busy.at["ticks"]))
            assert len(copy.threads()) == len(os.listdir(f"/proc/{busy.pid}/task"))
            assert copy.warnings == []
    assert ticks == sorted(ticks)
    assert ticks[0] < ticks[-1]
    check(busy, before)


@pytest.mark.matrix
def test_snapshots_one_after_the_other(busy: Watched, tmp_path: Path) -> None:
    """Run whole commands: commands that store figures, and commands that write cores."""
    before = lasting(busy)
    for words in (["--count", "4"], ["--weight", "core", "--count", "6"]):
        done = run_cli("snapshot", "--every", "0.05", "-o", str(tmp_path / words[0]), *words, "--pid", str(busy.pid), check=True)
        assert f" {words[-1]} snapshots in " in " ".join(done.stdout.split())
        check(busy, before)
