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
HERE, LOCKS = r"programs/go_mutexes\.go", r"programs/go_locks\.go"
IN_GET = r"main\.\(\*Settings\)\.get \(programs/go_locks\.go:\d+\): (sync\.RWMutex\.RLock|semacquire)"
HOLDER = rf" Goroutine (\d+) locked the one at 0x\w+ in main\.transfer \({HERE}:27\), and is in main\.transfer \({HERE}:30\): "
CYCLE = r" Deadlock: goroutine (\d+) waits for a lock of goroutine (?!\1)\d+, which waits for a lock of goroutine \1\. .* in the same order"
AGAIN = rf" Goroutine \d+ locked it in main\.\(\*Settings\)\.set \({LOCKS}:40\), and is in {IN_GET}\. Deadlock: this goroutine waits for "
BUSY = rf" Goroutine \d+ locked it in main\.hold \({HERE}:38\), and is in main\.hold \({HERE}:40\): chan receive"
ONCE = r"(\d+) (?:goroutines wait|goroutines are deadlocked) in main\.%s \(programs/go_once\.go:\d+\): sync\.Once\.Do\. "
LOADED = r"They wait for the sync\.Once variable at 0x\w+ \(used in main\.(?:load|main\.func\d)\)\. Goroutine \d+ called Do of it in "
LOADING = r"main\.load \(programs/go_once\.go:27\), and is in main\.load\.func1 \(programs/go_once\.go:27\): chan receive\. They were"
OPENED = rf"They wait for {COUNT} values of sync\.Once: main\.Table\.once\. Goroutine \d+ called Do of the one at 0x\w+ in "
OPENING = r"main\.\(\*Table\)\.open .*: sync\.Once\.Do\. Deadlock: the function of the sync\.Once waits for its own end\. .*do not call"
UNKNOWN = r"120 goroutines wait in main\.deposit .* They wait for 120 locks(: main\.Account\.lock)?\. They were created"
KINDS: dict[str, tuple[int, tuple[str, ...]]] = {
    "order": (COUNT, (rf"{COUNT} goroutines are deadlocked in main\.transfer .* They wait for {COUNT} locks", HOLDER, CYCLE)),
    "again": (COUNT, (rf"{COUNT} goroutines are deadlocked in {IN_GET}\. They wait for the lock variable at ", AGAIN)),
    "busy": (0, (r"120 goroutines wait in main\.register .* They wait for the lock variable at 0x\w+ \(used in main\.", BUSY)),
    "load": (0, (ONCE % "load", LOADED + LOADING)),
    "open": (COUNT, (ONCE % r"\(\*Table\)\.open", OPENED + OPENING)),
    "withdraw": (0, (r"120 goroutines are blocked for good in main\.\(\*Account\)\.withdraw .* wait for 120 locks: main\.Account\.mu\. ",)),
    "branch": (0, (UNKNOWN,)),
    "helper": (0, (UNKNOWN,)),
}
"""By kind: the number of deadlocked goroutines, and patterns of the text."""


def find_groups(pid: int) -> list[dict[str, Any]]:
    found = json.loads(findleaks("verdict", "--json", "--pid", str(pid)))["findings"]
    return [one for one in found if one["finding"] == "goroutines" and "programs/go_" in one["text"] and "main.hold" not in one["text"]]


@pytest.fixture(scope="module")
def programs() -> dict[tuple[str, str], Path]:
    return {}


@pytest.mark.parametrize(
    ("kind", "version"),
    [(kind, "") for kind in ("order", "again", "load", "open", "withdraw")]
    + [pytest.param(kind, "", marks=pytest.mark.matrix) for kind in ("busy", "branch", "helper")]
    + [pytest.param(kind, version, marks=pytest.mark.matrix) for kind in KINDS for version in VERSIONS],
)
def test_who_holds_the_lock(
    kind: str, version: str, programs: dict[tuple[str, str], Path], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Deadlocked goroutines are reported even if there are few. A goroutine does not count as the holder of a mutex that it locks on
    another path."""
    name = {"order": "go_mutexes", "busy": "go_mutexes", "load": "go_once", "open": "go_once", "withdraw": "go_once"}.get(kind, "go_locks")
    if (version, name) not in programs:
        programs[version, name] = build(tmp_path_factory.mktemp("go"), version, STRIPPED, name=name)
    deadlocked, patterns = KINDS[kind]
    count = COUNT if deadlocked else 6 * COUNT
    with Running([str(programs[version, name]), kind, str(count)], tmp_path / "run") as run:
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


USE = """func use(a *Account) {
	a.inner.lock.Lock()
	done := a.number < 1000
	BODY
	wait(a)
	if !done {
		a.inner.lock.Unlock()
	}
}
func set(a *Account) { SET }
"""
TWO = "//go:noinline\nfunc two(fs ...func() bool) bool { return fs[0]() && fs[1]() }\n"
FIRST = "//go:noinline\nfunc first[T interface{ Unlock() }](lock T) { lock.Unlock() }\n"
QUEUE = """var queue = make(chan *Account, 1000)
type Worker struct { number int; name string; inner Inner }
var worker = &Worker{}
func work() {
	for {
		worker.inner.lock.Lock()
		(<-queue).end()
	}
}
func (a *Account) end() { a.inner.lock.Unlock(); worker.inner.lock.Unlock(); a.group.Done() }
func init() { go work() }
"""
END = "//go:noinline\nfunc (i *Inner) end() { i.lock.Unlock(); i.count++ }\n"
WAYS = {  # by name: more declarations, statements of the goroutine, statements that prepare an account
    "method value": ("", "a.call()", "a.locker = &a.inner.lock; a.call = a.locker.Unlock"),
    "locker": ("", "a.call()", "a.locker = &a.inner.lock; a.call = func() { a.locker.Unlock() }"),
    "interface": ("", "a.unlocker.Unlock()", "a.unlocker = &a.inner.lock"),
    "method expression": ("", "a.callLock(&a.inner.lock)", "a.callLock = (*sync.Mutex).Unlock"),
    "assertion": ("", "a.any.(sync.Locker).Unlock()", "a.any = &a.inner.lock"),
    "generic": (FIRST, "first(&a.inner.lock)", ""),
    "reflection": ("", 'reflect.ValueOf(a.any).MethodByName("Unlock").Call(nil)', "a.any = &a.inner.lock"),
    "closures": (TWO, "done = two(func() bool { return true }, func() bool { a.inner.lock.Unlock(); return a.number < 1000 })", ""),
    "deferred": ("", "func() { defer func() { a.balance++; a.inner.lock.Unlock() }(); a.balance++ }()", ""),
    "inner structure": (END, "a.inner.end()", ""),
    "wait group": (QUEUE, "a.group.Add(1); queue <- a; a.group.Wait()", ""),
}
KEPT = ("method value", "method expression", "closures")


@pytest.mark.parametrize(("way", "version"), [
    *((way, "") for way in KEPT),
    *(pytest.param(way, "", marks=pytest.mark.matrix) for way in WAYS if way not in KEPT),
    *(pytest.param(way, version, marks=pytest.mark.matrix) for way in WAYS for version in VERSIONS),
])  # fmt: skip
def test_hidden_unlocks(way: str, version: str, tmp_path: Path) -> None:
    """A goroutine does not count as the holder of a lock that may have been unlocked through an interface, a function value, a closure that
    is not deferred, or a pointer to a part of the object."""
    declarations, body, prepare = WAYS[way]
    packages = [name for name, used in (("reflect", "reflect."), ("sync", "sync.")) if used in f"{declarations}{body}{prepare}"]
    imports = "".join(f'import "{name}"\n' for name in packages)
    more = imports + declarations + USE.replace("BODY", body).replace("SET", prepare)
    program = build(tmp_path, version, STRIPPED, name="go_hidden_unlocks", more=more)
    with Running([str(program), "120"], tmp_path / "run") as run:
        found = find_groups(run.pid)
    (waiting,) = (one for one in found if "main.deposit" in one["text"])
    assert waiting["evidence"]["goroutines"] == 120
    assert not waiting["evidence"]["deadlocked"] and not re.search(r"Goroutine \d+ locked|Deadlock", waiting["cause"]), waiting
