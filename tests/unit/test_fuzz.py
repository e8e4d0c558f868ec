"""A few of the mutations that `make fuzz` tries by the thousand, and a test that the fuzzer reports failures."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trials
from fuzz_cases import Case
from mutations import Mutation, apply
from trials import Limits

from findleaks.session import Session

MUTATIONS = {"sample": range(2), "glibc": range(2), "mimalloc": range(2)}
"""Seeds by core. What one seed does is the same each time, for the same core."""


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp(request.param), reading=("find", "caches", "verify"))


@pytest.mark.parametrize("case", MUTATIONS, indirect=True)
def test_damaged_cores(case: Case) -> None:
    for seed in MUTATIONS[case.name]:
        outcome, found = case.trial(seed, 2)
        assert not outcome.problem, f"seed {seed}, {found.commands}: {outcome.problem}"
    assert case.path.read_bytes() == case.sound.read_bytes()  # the original bytes were restored


def test_damaged_images(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every synthetic image can be made, and a few mutations of some of them cause no defect."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "fuzz"))
    import images

    assert all(maker().regions() for maker in images.MAKERS.values())
    monkeypatch.setattr("sys.argv", ["images.py", "--count", "3", "--only", "google,ruby2.7,g1"])
    assert images.main() == 0, capsys.readouterr().out


def test_a_seed_makes_the_same_damage(tmp_path: Path) -> None:
    core = Case("mimalloc", tmp_path, reading=("find", "caches", "verify")).core
    made = [Mutation(core, 3, ("/fifo",)).edits for _ in range(2)]
    assert made[0] == made[1] != Mutation(core, 4, ("/fifo",)).edits
    copy = tmp_path / "copy"
    copy.write_bytes(core.path.read_bytes())
    undo = apply(copy, made[0])
    assert copy.read_bytes() != core.path.read_bytes()
    assert undo is not None
    apply(copy, undo)
    assert copy.read_bytes() == core.path.read_bytes()


def _raises(session: Session) -> None:
    raise ZeroDivisionError


def _loops(session: Session) -> None:
    while True:
        pass


def _takes(session: Session) -> None:
    session.__dict__["much"] = bytearray(1 << 28)
    session.__dict__["much"][::4096] = b"x" * (1 << 16)


def _dies(session: Session) -> None:
    os.abort()


def _opens(session: Session) -> None:
    os.close(os.open("/dev/zero", os.O_RDONLY))


def _prints(session: Session) -> None:
    print("\x1b[31m")


def _sleeps(session: Session) -> None:
    time.sleep(600)


@pytest.mark.parametrize(
    ("wrong", "seen"),
    [
        (_raises, "ZeroDivisionError"),
        (_loops, "hangs: more than"),
        (_takes, "MiB, more than"),
        (_dies, "crashed: SIGABRT"),
        (_opens, "opens '/dev/zero'"),
        (_prints, "prints '\\x1b[31m'"),
        (_sleeps, "waits for something"),
    ],
)
def test_failures_are_detected(wrong: Callable[[Session], None], seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("mimalloc", tmp_path, reading=("find", "caches", "verify"))
    monkeypatch.setattr(Session, "end_progress", wrong)
    if wrong is _sleeps:
        monkeypatch.setattr(trials, "PATIENCE", 2.0)
    assert seen in trials.run(case.asked, [["stacks"]], Limits(1.0, 200 << 20)).problem
