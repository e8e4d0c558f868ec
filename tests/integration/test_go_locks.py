"""`verdict` on stripped Go programs in which goroutines wait for mutexes: it names the lock, the goroutine that holds it, and deadlocks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from debuggers import findleaks
from go_programs import STRIPPED, VERSIONS, build

from cores import Running

COUNT = 20
IN_GET = r"main\.\(\*Settings\)\.get \(programs/go_locks\.go:\d+\): (sync\.RWMutex\.RLock|semacquire)"
HERE = r"programs/go_locks\.go"
HOLDER = rf" Goroutine (\d+) locked the one at 0x\w+ in main\.transfer \({HERE}:34\), and is in main\.transfer \({HERE}:37\): "
CYCLE = r" Deadlock: goroutine (\d+) waits for a lock of goroutine (?!\1)\d+, which waits for a lock of goroutine \1\. .* in the same order"
AGAIN = rf" Goroutine \d+ locked it in main\.\(\*Settings\)\.set \({HERE}:52\), and is in {IN_GET}\. Deadlock: this goroutine waits for "
BUSY = rf" Goroutine \d+ locked it in main\.hold \({HERE}:59\), and is in main\.hold \({HERE}:61\): chan receive"
UNKNOWN = r"120 goroutines wait in main\.deposit .* They wait for 120 locks(: main\.Account\.lock)?\. They were created"
KINDS: dict[str, tuple[int, tuple[str, ...]]] = {
    "order": (COUNT, (rf"{COUNT} goroutines are deadlocked in main\.transfer .* They wait for {COUNT} locks", HOLDER, CYCLE)),
    "again": (COUNT, (rf"{COUNT} goroutines are deadlocked in {IN_GET}\. They wait for the lock variable at ", AGAIN)),
    "busy": (0, (r"120 goroutines wait in main\.register .* They wait for the lock variable at 0x\w+ \(used in main\.", BUSY)),
    "branch": (0, (UNKNOWN,)),
    "helper": (0, (UNKNOWN,)),
}
"""By kind: the number of deadlocked goroutines, and patterns of the text."""


def find_groups(pid: int) -> list[dict[str, Any]]:
    found = json.loads(findleaks("verdict", "--json", "--pid", str(pid)))["findings"]
    return [one for one in found if one["finding"] == "goroutines" and "programs/go_locks" in one["text"] and "hold" not in one["text"]]


@pytest.fixture(scope="module")
def programs() -> dict[str, Path]:
    return {}


@pytest.mark.parametrize(
    ("kind", "version"),
    [(kind, "") for kind in ("order", "again")]
    + [pytest.param(kind, "", marks=pytest.mark.matrix) for kind in ("busy", "branch", "helper")]
    + [pytest.param(kind, version, marks=pytest.mark.matrix) for kind in KINDS for version in VERSIONS],
)
def test_who_holds_the_lock(
    kind: str, version: str, programs: dict[str, Path], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Deadlocked goroutines are reported even if there are few. A goroutine does not count as the holder of a mutex that it locks on
    another path."""
    if version not in programs:
        programs[version] = build(tmp_path_factory.mktemp("go"), version, STRIPPED, name="go_locks")
    deadlocked, patterns = KINDS[kind]
    count = COUNT if deadlocked else 6 * COUNT
    with Running([str(programs[version]), kind, str(count)], tmp_path / "run") as run:
        found = find_groups(run.pid)
    said = [" ".join(f"{one['text']} {one['cause']} {' '.join(one['try'])}".split()) for one in found]
    assert said and all(re.search(pattern, said[0]) for pattern in patterns), said
    assert found[0]["evidence"]["deadlocked"] == deadlocked
    assert deadlocked or not any("eadlock" in one for one in said)


RACE = ("-race", STRIPPED)


BUILDS = [
    ("", (STRIPPED,)),
    *(pytest.param("", flags, marks=pytest.mark.matrix) for flags in (RACE, ("-gcflags=all=-N -l",))),
    *(pytest.param(version, (STRIPPED,), marks=pytest.mark.matrix) for version in VERSIONS),
]


@pytest.mark.parametrize(("version", "flags"), BUILDS)
@pytest.mark.parametrize(("name", "words"), [("go_locks", ["healthy", str(COUNT)]), ("go_unlocks", [str(COUNT)])])
def test_locks_that_were_unlocked(name: str, words: list[str], version: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    """A goroutine does not count as the holder of a lock that a condition variable, a deferred call, a called function or another goroutine
    has unlocked, or if it may have locked another one of the same type."""
    program = build(tmp_path, version, *flags, name=name, cgo=flags is RACE)
    with Running([str(program), *words], tmp_path / "run") as run:
        found = json.loads(findleaks("verdict", "--json", "--pid", str(run.pid)))["findings"]
    groups = [one for one in found if one["finding"] == "goroutines"]
    assert any(re.match(r"140 goroutines wait in main\.deposit |180 goroutines wait in main\.holdSlowly ", one["text"]) for one in groups)
    assert not [one for one in groups if one["evidence"]["deadlocked"] or re.search(r"Goroutine \d+ locked|Deadlock", one["cause"])]


@pytest.mark.parametrize(("version", "flags"), BUILDS)
def test_lock_across_indirect_calls(version: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    """A goroutine that locks a mutex twice is deadlocked, even if it calls closures, interfaces and other goroutines meanwhile: no function
    of the program unlocks what another one has locked."""
    program = build(tmp_path, version, *flags, name="go_relocks", cgo=flags is RACE)
    with Running([str(program), str(COUNT)], tmp_path / "run") as run:
        found = json.loads(findleaks("verdict", "--json", "--pid", str(run.pid)))["findings"]
    groups = [one for one in found if one["finding"] == "goroutines"]
    assert [(one["evidence"]["deadlocked"], one["evidence"]["goroutines"]) for one in groups] == [(COUNT, COUNT)] * 3, groups
