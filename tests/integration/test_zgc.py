"""ZGC and Shenandoah move objects while the program runs: at any stop, live objects are those of the program and of the JVM."""

from __future__ import annotations

import gc
import os
import random
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import frame_stops
import heap_dumps
import jvms
import pytest
import truth
from java_heaps import COMPACT, ZGC, java, java_name

import cores
import findleaks
from findleaks.runtimes.base import Type
from findleaks.runtimes.jvm.instance import HotSpot
from findleaks.runtimes.jvm.relocation import Relocation
from findleaks.runtimes.object_graph import LIVE

COUNT, THREADS = 1500, 2
MADE = {"JavaMoving$Node": COUNT, "JavaMoving$Small": COUNT, "JavaMoving$Local": THREADS}
STALE = 3
"""The maximum number of objects of a class to which only stale words refer."""
COPIES = COUNT // 50
"""The maximum number of garbage copies of objects of one class. If two threads move an object at the same time, one of the two copies is
not used. With generations, copies on a page that was released at the time of the stop may also count as garbage. A note gives an upper
limit of the number of garbage copies."""
GENERATIONS = ("-XX:+ZGenerational",)
SHENANDOAH = ("-XX:+UseShenandoahGC",)
NARROW = ("-Xmx24m",)
"""The heap is so small that ZGC moves objects within their page."""


@contextmanager
def moving(folder: Path, version: str, *options: str) -> Iterator[int]:
    """Yield the pid of JavaMoving.java, whose threads allocate all the time."""
    jvms.compile_java(truth.PROGRAMS / "JavaMoving.java", folder, "--release", "8", "-Xlint:-options")
    words = [str(COUNT), str(THREADS)]
    given = ["-Xmx256m", "-XX:+UnlockExperimentalVMOptions", *(() if any("Use" in one for one in options) else ("-XX:+UseZGC",)), *options]
    program = frame_stops.Busy(jvms.command(version, folder, "JavaMoving", *words, options=given), os.environ, folder / "output")
    try:
        program.read_line(cores.READY)
        yield program.pid
    finally:
        program.end()


def jvm_of(process: findleaks.Process) -> HotSpot:
    (found,) = (one for one in process._session.runtimes if isinstance(one, HotSpot))
    return found


def noted_garbage(jvm: HotSpot) -> int:
    """Return the number of garbage objects in the note. Some of them may be copies."""
    return int(jvm.types_note().split()[0].replace(",", "")) if jvm.types_note() else 0


def check_stop(pid: int) -> tuple[bool, bool]:
    """Check the objects at one stop: all objects that the program keeps are live, unless a reported problem says that some objects cannot
    be read. Return whether findleaks found all objects, and whether a relocation was running."""
    with findleaks.attach(pid) as process:
        jvm = jvm_of(process)
        types = {one.name: one for one in jvm.types()}
        relocation = jvm._tables.relocation or Relocation()
        assert relocation.is_known
        found = {name: types.get(name, Type(name, 0, 0)) for name in MADE}
        if jvm.counts_garbage:
            return False, True
        copies = [one.own.get("garbage_objects", 0) for one in found.values()]
        assert max(copies) <= COPIES
        assert sum(copies) <= noted_garbage(jvm) or jvm._tables.relocation is None
        live = {name: one.objects for name, one in found.items()}
        less = [count - live[name] for name, count in MADE.items()]
        assert min(less) >= -COPIES and (max(less) <= 0 or jvm.problems), (live, jvm.problems)
        moves = jvm._objects.moves.before if jvm._objects is not None else ()
        return max(less) <= 0, bool(relocation.copies or relocation.moving or moves)


STOPS = [
    *((version, more) for version in ("system", *jvms.VERSIONS) for more in ((), NARROW)),
    *(("21.0.4", (*GENERATIONS, *more)) for more in ((), NARROW)),
    ("11", ()),
    *((version, SHENANDOAH) for version in ("11", "system", *jvms.VERSIONS)),
    *(("25.0.2", (*SHENANDOAH, *more)) for more in (COMPACT, ("-XX:ShenandoahGCMode=generational",))),
]


@pytest.mark.platform("x86-64", "JVM", of="17, 21, 25")
@pytest.mark.parametrize(("version", "options"), STOPS)
@pytest.mark.matrix
def test_stops_at_any_moment(tmp_path: Path, version: str, options: tuple[str, ...]) -> None:
    """At nearly all stops, all objects can be read. Some stops are during a relocation."""
    stops, state = 50, random.Random(50)
    with moving(tmp_path, version, *options) as pid:
        seen = []
        for _ in range(stops):
            time.sleep(state.random() / 5)
            seen.append(check_stop(pid))
            gc.collect()  # frees the copy of the process
    assert sum(whole for whole, _ in seen) >= 0.5 * stops


def live_objects(pid: int, version: str) -> Mapping[str, tuple[int, int]]:
    """Return the number of live objects of each class, and their bytes, as jcmd prints them after a collection."""
    for command in ("GC.run", "GC.class_histogram", "GC.run", "GC.class_histogram"):
        words = [jvms.jcmd(version), str(pid), command]
        text = subprocess.run(words, check=True, capture_output=True, text=True, timeout=cores.PATIENCE).stdout
    found: dict[str, tuple[int, int]] = {}
    for objects, size, name in re.findall(r"^ *\d+: +(\d+) +(\d+) +(\S+)", text, re.M):
        count, total = found.get(java_name(name), (0, 0))
        found[java_name(name)] = count + int(objects), total + int(size)
    return found


OTHERS = [*ZGC[1:], *((version, "Shenandoah", ()) for version in ("system", *jvms.VERSIONS)), ("11", "Shenandoah", ())]


@pytest.mark.platform("x86-64", "JVM", of="17, 21, 25")
@pytest.mark.parametrize(("version", "collector", "options"), [ZGC[0], *(pytest.param(*row, marks=pytest.mark.matrix) for row in OTHERS)])
def test_live_objects_are_those_of_the_jvm(tmp_path: Path, version: str, collector: str, options: tuple[str, ...]) -> None:
    with java(tmp_path, version, f"-XX:+Use{collector}GC", *options, words=("collect",)) as running:
        shown = live_objects(running.pid, version)
        with findleaks.attach(running.pid) as process:
            found = {one.name: one.objects for one in jvm_of(process).types() if one.objects}
    more = {name: found.get(name, 0) - count for name, (count, _) in shown.items()}
    assert min(more.values()) >= 0, more
    assert sum(more.values()) <= 0.01 * sum(found.values()), more
    assert {name: count for name, count in more.items() if name.startswith("JavaHeap") and not 0 <= count <= STALE} == {}
    assert sum(not count for count in more.values()) >= 0.9 * len(shown) > 200


@pytest.mark.matrix
@pytest.mark.parametrize(("version", "collector", "options"), [ZGC[0], *OTHERS])
def test_live_objects_are_those_of_a_heap_dump(tmp_path: Path, version: str, collector: str, options: tuple[str, ...]) -> None:
    """The live objects have the addresses of those in the dump. Stale words of stacks may refer to a few more: for example, a local
    variable of the thread Common-Cleaner refers to the Cleaner that it called last."""
    file = tmp_path / "live.hprof"
    with java(tmp_path, version, f"-XX:+Use{collector}GC", *options, words=("collect",)) as running:
        for words in (("GC.run",), ("GC.heap_dump", str(file))):  # up to JDK 21, a dump does not collect with each collector
            subprocess.run([jvms.jcmd(version), str(running.pid), *words], check=True, capture_output=True, timeout=cores.PATIENCE)
        with findleaks.attach(running.pid) as process:
            graph = jvm_of(process).object_graph()
            assert graph is not None and graph.graph is not None
            kinds = graph.graph.kinds()
            ours = {graph.blocks.address(index): graph.type_of(index) for index in range(len(graph.blocks)) if kinds[index] in LIVE}
    dump = heap_dumps.read(file)
    theirs = {*dump.instances, *dump.arrays, *dump.numbers, *dump.classes}
    missing, more = theirs - ours.keys(), ours.keys() - theirs
    program = {one for one, (kind, _) in dump.instances.items() if dump.names[kind].startswith("JavaHeap")}
    assert len(program) > 1000 and not missing & program
    assert sum(ours[one].startswith("JavaHeap") for one in more) <= STALE
    assert len(missing) + len(more) <= 0.01 * len(theirs), (len(missing), Counter(map(ours.__getitem__, more)).most_common(5))
