"""The locks of Java threads are those that the JVM prints at the same stop, and deadlocks are found."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import debuggers
import java_frames
import java_heaps
import jvms
import pytest
import truth
from verdicts import verdict

import cores
import findleaks
from findleaks.answers.stacks import group_stacks
from findleaks.results.stacks import Stacks

OPTIONS = {
    "uncompressed": (jvms.SYSTEM, "-XX:-UseCompressedOops"),
    "colored": (jvms.SYSTEM, "-XX:+UseZGC"),
    "colored-generations": ("25.0.2", "-XX:+UseZGC"),
    "lock-stacks": ("21.0.4", "-XX:+UnlockExperimentalVMOptions -XX:LockingMode=2"),
    "monitor-table": ("25.0.2", "-XX:+UnlockDiagnosticVMOptions -XX:+UseObjectMonitorTable"),
    "compact": ("25.0.2", "-XX:+UseCompactObjectHeaders"),
}
EACH = [
    *(
        pytest.param(
            version, mode, "", marks=() if (version, mode) == (jvms.SYSTEM, "mixed") else pytest.mark.matrix, id=f"{version}-{mode}"
        )
        for version in java_frames.VERSIONS
        for mode in java_frames.MODES
    ),
    *(pytest.param(version, "mixed", options, marks=pytest.mark.matrix, id=name) for name, (version, options) in OPTIONS.items()),
]


@contextmanager
def start_program(version: str, folder: Path, mode: str, *options: str, deadlock: bool = True) -> Iterator[cores.Running]:
    """Start the program, whose threads hold locks and wait for them."""
    jvms.compile_java(truth.PROGRAMS / "JavaLocks.java", folder, "--release", "8")
    calls, *given = map(str, java_frames.MODES[mode])
    words = [calls, *(["deadlock"] if deadlock else [])]
    command = jvms.command(version, folder, "JavaLocks", *words, options=[*given, "-Xmx64m", *options])
    with cores.Running(command, folder, stdin=subprocess.PIPE) as running:
        yield running


def attach(pid: int) -> Stacks:
    with findleaks.attach(pid) as process:
        return group_stacks(process._session, lines=False).result


@pytest.mark.parametrize(("version", "mode", "options"), EACH)
def test_locks_are_those_that_the_jvm_prints(version: str, mode: str, options: str, tmp_path: Path) -> None:
    with start_program(version, tmp_path, mode, *options.split()) as running:
        printed = java_frames.printed_locks(version, running.pid)
        found = attach(running.pid)
    kinds, names = set(), set()
    for stack in found.stacks:
        for tid, name in zip(stack.threads, stack.names):
            mine, theirs = java_frames.read_locks(stack, tid), [one for one in printed.get(tid, []) if one[0] >= 0]
            # In a compiled method, JDK 8 prints no line for Object.wait().
            mine = mine[1:] if len(mine) == len(theirs) + 1 and mine[0][1].startswith("waiting on") and mode == "compiled" else mine
            assert [at for at, _ in mine] == [at for at, _ in theirs], (name, mine, theirs)
            assert all(map(java_frames.same_lock, (text for _, text in mine), (text for _, text in theirs))), (name, mine, theirs)
            kinds |= {text.partition(" <")[0] for _, text in mine}
            names |= {name} if mine else set()
    assert kinds >= {"locked", "waiting to lock", "waiting on", "parking to wait for"}
    assert len(names) >= 13
    by_tid = {tid: name for stack in found.stacks for tid, name in zip(stack.threads, stack.names)}
    assert {by_tid[one.thread]: by_tid[one.owner] for stack in found.stacks for one in stack.locks if one.owner} == {
        "enters": "holder",
        "enters class": "holder",
        "locks": "owner",
        "reader": "writer",
        "A": "B",
        "B": "A",
        "lock 0": "lock 1",
        "lock 1": "lock 0",
    }
    assert [[one.name for one in cycle.threads] for cycle in found.deadlocks] == [["A", "B"], ["lock 0", "lock 1"]]


def test_threads_with_one_stack_hold_different_objects(tmp_path: Path) -> None:
    """These threads stay in one group, which has no addresses. This holds for text, JSON, all front ends, and cores."""
    with start_program(jvms.SYSTEM, tmp_path, "mixed") as running:
        core = str(running.kernel_core())
    java = str(jvms.get(jvms.SYSTEM) / "bin" / "java")
    shown = [
        debuggers.findleaks("stacks", "--no-lines", "--json", core),
        debuggers.gdb(["leaks stacks --no-lines --json"], java, core),
        debuggers.lldb(["leaks stacks --no-lines --json"], java, "-c", core),
    ]
    answers = [json.loads(debuggers.objects(each)[0]) for each in shown]
    locks = [[one.get("locks") for one in answer["stacks"]] for answer in answers]
    assert all(answer["deadlocks"] == answers[0]["deadlocks"] for answer in answers) and len(answers[0]["deadlocks"]) == 2
    assert all(one == locks[0] for one in locks)
    (group,) = (one for one in answers[0]["stacks"] if one["names"] == ["same"] * 3)
    held = [one for one in group["locks"] if one["kind"] == "locked"]
    assert len({one["address"] for one in held}) == len({one["thread"] for one in held}) == 3
    text = debuggers.findleaks("stacks", "-c", "JavaLocks.*", "--no-lines", core)
    assert re.search(r"3 threads: .*\(same\).*\n(.*\n)* +JavaLocks\.enter at .*\n +- locked \(a java\.lang\.Object\)\n", text)
    assert re.search(r"- waiting to lock <0x\w+> \(a java\.lang\.Object\), which thread \d+ \(holder\) holds\n", text)
    assert "deadlock: thread" in text
    text = " ".join(debuggers.findleaks("verdict", core).split())
    assert " 1. 2 threads cannot continue, because they wait for locks of each other: a deadlock. Thread" in text
    assert "(lock 1) is parking to wait for <0x" in text
    assert "deadlock: thread" in debuggers.findleaks("runtime", "--limit", "1", core)


@pytest.mark.matrix
def test_no_deadlock_without_one(tmp_path: Path) -> None:
    with start_program(jvms.SYSTEM, tmp_path, "mixed", deadlock=False) as running:
        assert not attach(running.pid).deadlocks


VIRTUAL = [
    ("21.0.4", (), ()),
    *(
        pytest.param(version, words, options, marks=pytest.mark.matrix)
        for version, words, options in (
            ("21.0.4", ("pinned",), ()),
            ("21.0.4", (), ("-XX:+UseZGC",)),
            ("25.0.2", (), ()),
            ("25.0.2", (), ("-XX:+UseZGC",)),
            *(("25.0.2", (kind,), options) for kind in ("monitors", "mixed") for options in (("-XX:+UseZGC",), java_heaps.COMPACT)),
        )
    ),
    ("25.0.2", ("monitors",), ()),
    pytest.param("25.0.2", ("mixed",), (), marks=pytest.mark.matrix),
]


def find_deadlocks(folder: Path, version: str, words: tuple[str, ...], options: tuple[str, ...]) -> list[Any]:
    """Return the findings about deadlocks in JavaVirtualDeadlock."""
    jvms.compile_java(truth.PROGRAMS / "JavaVirtualDeadlock.java", folder, "--release", "8", "-Xlint:-options")
    given = ["-Xmx64m", "-XX:TieredStopAtLevel=1", *options]
    with cores.Running(jvms.command(version, folder, "JavaVirtualDeadlock", *words, options=given), folder) as running:
        return [one for one in verdict("--pid", str(running.pid))["findings"] if one["finding"] == "deadlock"]


@pytest.mark.parametrize(("version", "words", "options"), VIRTUAL)
def test_deadlocks_of_virtual_threads(version: str, words: tuple[str, ...], options: tuple[str, ...], tmp_path: Path) -> None:
    """`verdict` names the two virtual threads and their locks. The third one, whose lock a sleeping thread holds, is not deadlocked."""
    (one,) = find_deadlocks(tmp_path, version, words, options)
    lock, monitor = "parking to wait for", "waiting to lock"
    if words == ("pinned",):  # both threads occupy their carriers
        first, second = one["evidence"]["threads"]
        assert sorted((first["kind"], second["kind"])) == [lock, monitor]
    else:
        first, second = one["evidence"]["java_threads"]
        kinds = {(): [lock, lock], ("monitors",): [monitor, monitor], ("mixed",): [lock, monitor]}[words]
        assert [first["name"], second["name"]] == ["left", "right"] and [first["kind"], second["kind"]] == kinds
        type_ = "java.lang.Object)" if kinds[0] == monitor else "java.util.concurrent.locks.Reentrant"
        assert f"hread {first['thread']} (left) is {kinds[0]} <{first['address']}> (a {type_}" in one["cause"]
    assert (first["owner"], second["owner"]) == (second["thread"], first["thread"])
    assert one["text"].startswith("2 threads cannot continue") and one["next"] == ["stacks"]


@pytest.mark.parametrize(
    ("version", "kind", "options"),
    [
        ("21.0.4", "timed", ()),
        *(
            pytest.param(version, kind, options, marks=pytest.mark.matrix)
            for version, kind, options in (
                ("21.0.4", "timed", ("-XX:+UseZGC",)),
                ("25.0.2", "timed", ()),
                ("25.0.2", "held", ()),
                *((version, "platform", ()) for version in ("8", "11", jvms.SYSTEM, "25.0.2")),
            )
        ),
    ],
)
def test_waits_that_end_are_not_deadlocks(version: str, kind: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """Waits with a timeout end by themselves. A lock is free after unlocking, even if its class leaves the thread in the field."""
    assert not find_deadlocks(tmp_path, version, (kind,), options)
