"""`verdict` names the variable or the collection that retains Java objects, in one finding, with a remedy."""

from __future__ import annotations

import re
from pathlib import Path

import jvms
import pytest
import truth
from debuggers import runtime_page
from verdicts import finding, verdict

from cores import Running

PAGES = 20_000 * 1040
LOCALS, QUEUE, WEAK, HOOKS, TIMERS = "locals", "queue", "weak", "hooks", "timers"
ROOTS = {
    LOCALS: "thread-local variable JavaRetainers.CONTEXT of 8 threads",
    QUEUE: 'Java thread "',  # the thread main or that of the pool, or the stack of one of them
    WEAK: "static variable JavaRetainers.STATISTICS",
    HOOKS: "static variable java.lang.ApplicationShutdownHooks.hooks",
    TIMERS: "task queues of 200 timers",
}
PATHS = {
    LOCALS: "java.lang.ThreadLocal$ThreadLocalMap$Entry.value → JavaRetainers$Context",
    QUEUE: "java.util.concurrent.ThreadPoolExecutor.workQueue → java.util.concurrent.LinkedBlockingQueue.head",
    WEAK: "java.util.WeakHashMap$Entry.value → JavaRetainers$Statistics.page → JavaRetainers$Page.content",
    HOOKS: "java.lang.Object[] → JavaRetainers$1.pages → JavaRetainers$Page[] → JavaRetainers$Page.content",
    TIMERS: "java.util.TaskQueue.queue → java.util.TimerTask[] → JavaRetainers$2.val$page → JavaRetainers$Page.content → byte[]",
}
REMEDIES = {
    LOCALS: "ThreadLocal.remove() at the end of each task",
    QUEUE: "a bounded queue for the ThreadPoolExecutor",
    WEAK: "values of a WeakHashMap that do not refer to their keys",
    HOOKS: "Runtime.removeShutdownHook()",
    TIMERS: "Timer.cancel() for each java.util.Timer",
}
QUICK = ((jvms.SYSTEM, LOCALS), ("25.0.2", WEAK), ("8", HOOKS))
EACH = [
    *(("21.0.4", kind) for kind in ROOTS),
    *((version, kind) for version in ("8", "11", jvms.SYSTEM, "25.0.2") for kind in (WEAK, HOOKS, TIMERS)),
]
LEAST = 0.5  # smallest part of the pages: stale words may refer to the objects of a few threads, or to an element of the queue


@pytest.mark.parametrize(("version", "kind"), [*QUICK, *(pytest.param(*one, marks=pytest.mark.matrix) for one in EACH if one not in QUICK)])
def test_cause_and_remedy(version: str, kind: str, tmp_path: Path) -> None:
    jvms.compile_java(truth.PROGRAMS / "JavaRetainers.java", tmp_path, "--release", "8")
    options = ("-Xmx128m", "-Xms128m", "-XX:+UseG1GC", "-XX:G1HeapRegionSize=1m")
    with Running(jvms.command(version, tmp_path, "JavaRetainers", kind, options=options), tmp_path / "run") as running:
        found = verdict("--pid", str(running.pid))
    held = finding(found, "retained-objects")
    root = held["evidence"]["root"]
    assert root.replace("stack of ", "").startswith(ROOTS[kind]) if kind == QUEUE else root == ROOTS[kind]
    assert LEAST * PAGES < held["evidence"]["retained_bytes"] < PAGES * 1.3
    assert PATHS[kind] in held["cause"]
    assert held["try"][0].startswith(REMEDIES[kind])
    # The same objects are in no other finding. In JDK 8, the 200 threads are not at the start of their blocks.
    assert [one["finding"] for one in found["findings"] if one["finding"] in ("held-by-managed-objects", "live-objects", "possible")] == []


BUFFERS = 1000


@pytest.mark.parametrize("version", [jvms.SYSTEM, *(pytest.param(one, marks=pytest.mark.matrix) for one in ("11", "21.0.4", "25.0.2"))])
def test_cleaner_that_waits(version: str, tmp_path: Path) -> None:
    """The collector has cleared the references to the dropped objects, but the thread of the Cleaner has not run their actions. Therefore
    the buffers of these actions are not garbage, and the finding names the cause."""
    jvms.compile_java(truth.PROGRAMS / "BlockedCleaner.java", tmp_path, "--release", "11")
    command = jvms.command(version, tmp_path, "BlockedCleaner", str(BUFFERS), options=("-Xmx64m", "-XX:+UseSerialGC"))
    with Running(command, tmp_path / "run") as running:
        held = finding(verdict("--pid", str(running.pid)), "held-by-managed-objects")
    (row, *_) = held["evidence"]["types"]
    assert (row["name"], row["objects"]) == ("java.nio.DirectByteBuffer", BUFFERS) and row["native_bytes"] >= 30_000 * BUFFERS
    assert held["text"].startswith("In use, not leaked") and "jdk.internal.ref.CleanerImpl" in held["cause"]
    assert held["try"][-1] == "find out what the thread of the Cleaner waits for: it runs one cleaning action after the other"


OWN = 12_000


@pytest.mark.parametrize("version", [jvms.SYSTEM, *(pytest.param(one, marks=pytest.mark.matrix) for one in ("11", "21.0.4", "25.0.2"))])
def test_cleaning_actions_that_refer_to_their_objects(version: str, tmp_path: Path) -> None:
    """These objects never become garbage. Objects whose actions do not refer to them do, with their actions. Stale words of a stack may
    refer to a few."""
    jvms.compile_java(truth.PROGRAMS / "OwnActions.java", tmp_path, "--release", "11")
    command = jvms.command(version, tmp_path, "OwnActions", str(OWN), options=("-Xmx256m", "-Xms256m", "-Xmn200m", "-XX:+UseSerialGC"))
    with Running(command, tmp_path / "run") as running:
        held = finding(verdict("--pid", str(running.pid)), "retained-objects")
        types = {one["name"]: one for one in runtime_page("jvm", "--pid", str(running.pid))["types"]}
    assert "jdk.internal.ref.CleanerImpl" in held["cause"] and held["try"][0].startswith("actions of the Cleaner that do not refer to ")
    number = re.search(r"([\d,]+) objects live only because a Cleaner has an action for them that refers to them", held["cause"])
    assert number is not None and OWN - 10 <= int(number[1].replace(",", "")) <= OWN
    assert types["OwnActions$Page"]["objects"] == OWN
    for name in ("OwnActions$Proper", "OwnActions$State"):
        assert OWN // 10 <= types[name]["objects"] <= OWN // 10 + 10


WAITING = 10_000


@pytest.mark.matrix
@pytest.mark.parametrize("version", ["21.0.4", "25.0.2"])
def test_virtual_threads_that_wait(version: str, tmp_path: Path) -> None:
    """A static variable of the program and one of the JDK refer to each virtual thread, so neither variable retains it alone. The same
    number of virtual threads have ended and have no frames."""
    jvms.compile_java(truth.PROGRAMS / "JavaVirtualThreads.java", tmp_path, "--release", "17")
    with Running(jvms.command(version, tmp_path, "JavaVirtualThreads", str(WAITING), options=("-Xmx128m",)), tmp_path / "run") as running:
        held = finding(verdict("--pid", str(running.pid)), "retained-objects")
    assert held["text"].startswith(f"In use, not leaked: {2 * WAITING:,} objects of java.lang.VirtualThread retain ")
    assert f"in {WAITING:,} objects of jdk.internal.vm.StackChunk" in held["cause"]
    assert held["evidence"]["type"] == "java.lang.VirtualThread" and held["evidence"]["retained_objects"] > 3 * WAITING
    assert held["next"][0].startswith("stacks") and held["try"][0].startswith("find out what the virtual threads wait for")
