"""Objects of the Java heap by class: the numbers equal those that jcmd and the program print for the same process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import debuggers
import fuzz_files
import jvms
import pytest
import truth
from java_heaps import COMPACT, COUNT, PLAIN, UNEQUAL, ZGC, histogram, java

import cores
import findleaks

KEPT, FORGOTTEN = 20, 30
"""The numbers of Inflaters that the program keeps and drops. Each has two blocks; zlib's state has about 7 KB (inflate.h)."""
INFLATER = 7000
STATICS = ("kept", "ARRAYS", "WEAK", "INFLATERS", "SCRIPTS")
STATE = 120
"""Usable bytes of the block with the z_stream, to which the Java object refers."""


def runtime(*where: str) -> dict[str, Any]:
    """Return the JVM's part of `runtime --json`, with the warnings."""
    answer = json.loads(debuggers.findleaks("runtime", "--only", "jvm", "--json", "--limit", "0", *where))
    (found,) = answer["runtimes"]
    return {**found, "warnings": answer["warnings"]}


def by_class(found: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the number of objects of each class, and their bytes; garbage is included."""
    return {
        one["name"]: (one["objects"] + one["own"].get("garbage_objects", 0), one["bytes"] + one["own"].get("garbage_bytes", 0))
        for one in found["types"]
    }


def live_and_garbage(found: Mapping[str, Any], name: str) -> tuple[int, int]:
    one = types(found)[name]
    return one["objects"], one["own"]["garbage_objects"]


def types(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in found["types"]}


MATRIX = [
    *(("system", collector, ()) for collector in ("Serial", "Parallel")),
    *((version, collector, ()) for version in jvms.VERSIONS for collector in ("Serial", "Parallel", "G1")),
    *((version, collector, ()) for version in jvms.DEBIAN for collector in ("Serial", "Parallel", "G1", "ConcMarkSweep")),
    *((version, "G1", PLAIN) for version in ("system", *jvms.VERSIONS, *jvms.DEBIAN)),
    *(("25.0.2", collector, COMPACT) for collector in ("Serial", "Parallel", "G1")),
    ("system", "G1", ("-XX:ObjectAlignmentInBytes=16",)),
    ("system", "G1", ("-Xmx40g", "-Xms64m")),  # references are shifted, relative to another base
]
ROWS = [("system", "G1", ()), *(pytest.param(*row, marks=pytest.mark.matrix) for row in MATRIX)]


@pytest.mark.platform("x86-64", "JVM", of="17, 21, 25")
@pytest.mark.platform("x86-64", "JVM", of="8, 11")
@pytest.mark.parametrize(("version", "collector", "options"), ROWS)
def test_objects_by_class_are_those_of_jcmd(tmp_path: Path, version: str, collector: str, options: tuple[str, ...]) -> None:
    """The histogram of jcmd creates objects. jcmd therefore runs twice, and the second run counts the objects of the first."""
    with java(tmp_path, version, f"-XX:+Use{collector}GC", *options, words=("collect",)) as running:
        histogram(running.pid, version)
        shown = histogram(running.pid, version)
        live = runtime("--pid", str(running.pid))
        with findleaks.attach(running.pid) as process:
            asked = check_objects(process) if version not in jvms.DEBIAN else []
        file = str(running.kernel_core())
        core = runtime(file)
    with findleaks.open(file) as process:
        assert version in jvms.DEBIAN or check_objects(process) == asked
    for found in (live, core):
        ours = by_class(found)
        assert not [one for one in found["warnings"] if "Java heap" in one]
        assert {name for name in {*shown, *ours} if shown.get(name) != ours.get(name) and name not in UNEQUAL} == set()
        assert ours["JavaHeap$Kept"][0] == COUNT
        assert ours["JavaHeap$Script"][0] == 25
        assert ours["short[]"][0] >= COUNT
        assert ours["JavaHeap$Kept[][]"][0] == COUNT
        assert ours["long[]"][1] > 1 << 21
        check_reachability(found, version)
        if version not in jvms.DEBIAN:
            check_retained(found)
    # A thread of the JVM may allocate between the two snapshots, so the filler objects may differ.
    first, second = by_class(live), by_class(core)
    assert {name for name in {*first, *second} if first.get(name) != second.get(name) and name not in UNEQUAL} == set()


def fields(process: findleaks.Process, address: int) -> dict[str, Any]:
    """Return the fields of an object by name."""
    return {word.member or "": word for word in process.whatis(address, 0).words or ()}


def check_objects(process: findleaks.Process) -> list[int]:
    """Check that a path leads to the state of each Inflater that the program keeps, and to no other state. Return the addresses of the
    references on a path, and the addresses of the states."""
    states = [block.address for block in process.blocks(size=STATE)]
    paths = (process.path(address).steps for address in states)
    path = next(steps for steps in paths if any(step.origin.endswith("; .zsRef") for step in steps) and len(steps) == 6)
    places = [step.place.member for step in path[1:] if step.place]
    assert places == ["static .INFLATERS", ".elementData", places[2], ".zsRef", ".address"]
    statics = fields(process, path[0].value)
    assert {name for name in statics if name.startswith("static")} == {f"static .{name}" for name in STATICS}
    array = fields(process, statics["static .INFLATERS"].value)[".elementData"].value
    inflaters = [word.value for word in fields(process, array).values() if word.value]
    streams = [fields(process, inflater)[".zsRef"].value for inflater in inflaters]
    kept = [fields(process, stream)[".address"].value for stream in streams]
    assert len(set(kept)) == KEPT and set(kept) < set(states)
    objects = [one.origin.object for one in process.referrers(streams[0]).references if one.origin and one.origin.object]
    assert [(one.address, one.type, one.live) for one in objects] == [(inflaters[0], "java.util.zip.Inflater", True)]
    check_list(process, statics["static .kept"].value)
    check_forgotten(process, sorted(set(states) - set(kept)))
    return [step.address or 0 for step in path] + kept


def check_inflaters(process: findleaks.Process) -> list[int]:
    """Check that a path leads from the static variable INFLATERS to the state of an Inflater. Return the addresses of the states. If a
    stale word refers to an object of the list `kept`, the static variable `kept` retains neither this object nor the objects that are
    reachable from it."""
    (heap,) = process.heap_roots()
    statics = {one.name.removeprefix("static variable JavaHeap."): one for one in heap.roots}
    inflaters = statics["INFLATERS"]
    assert inflaters.objects >= 2 * KEPT and 2 <= statics["kept"].objects <= 2 * COUNT
    array = fields(process, inflaters.address)[".elementData"].value
    streams = [fields(process, word.value)[".zsRef"].value for word in fields(process, array).values() if word.value]
    states = [fields(process, stream)[".address"].value for stream in streams]
    assert len(set(states)) == KEPT
    places = [step.place.member for step in process.path(states[0]).steps if step.place]
    assert places[-5:-3] == ["static .INFLATERS", ".elementData"] and places[-2:] == [".zsRef", ".address"]
    (owner,) = (one.origin.object for one in process.referrers(streams[0]).references if one.origin and one.origin.object)
    assert (owner.type, owner.live) == ("java.util.zip.Inflater", True)
    check_list(process, statics["kept"].address)
    return states


def check_list(process: findleaks.Process, node: int) -> None:
    """Check that the first nodes have the numbers that the program stored."""
    for number in range(COUNT - 1, COUNT - 4, -1):
        one = fields(process, node)
        assert one[".number"].text == f"{number:,}"
        node = one[".next"].value


def check_forgotten(process: findleaks.Process, states: list[int]) -> None:
    """Check that most objects that refer to other states are garbage, so that no path leads to them. A stale word may refer to one of
    them."""
    owners = (one.origin.object for state in states for one in process.referrers(state).references if one.origin and one.origin.object)
    garbage = (one for one in owners if one.type.endswith("$InflaterZStreamRef") and not one.live)
    assert [process.path(one.address).steps for one in islice(garbage, 2)] == [[], []]


def check_retained(found: Mapping[str, Any]) -> None:
    """Check that each node of the list alone retains its array of 5 bytes. A stale word may refer to one of the arrays."""
    kept = types(found)["JavaHeap$Kept"]
    sizes = [kept["bytes"] + COUNT * size for size in (24, 32)]  # bytes of an array, by the size of its header
    assert any(whole - 32 <= kept["retained_bytes"] <= whole for whole in sizes)


def check_reachability(found: Mapping[str, Any], version: str) -> None:
    """Check that objects that the program keeps are live, and that dropped objects are garbage. A stale word of a stack may refer to a
    few dropped objects.

    In JDK 11, jcmd leaves the addresses of all class loaders in memory. In JDK 8, an Inflater has a finalizer, which has not run yet.
    """
    if version in jvms.DEBIAN:
        check_old(found)
        return
    for name, kept, forgotten in (
        ("JavaHeap$Kept", COUNT, 0),
        ("JavaHeap$Forgotten", 0, COUNT),
        ("JavaHeap$Weak", 0, COUNT),
        ("JavaHeap$Script", 10, 15),
        ("JavaHeap$Loader", 10, 15),
        ("java.util.zip.Inflater", KEPT, FORGOTTEN),
        ("java.util.zip.Inflater$InflaterZStreamRef", KEPT, FORGOTTEN),
    ):
        live, garbage = live_and_garbage(found, name)
        assert live + garbage == kept + forgotten, name
        assert 0 <= live - kept <= (1 if forgotten else 0), name
    owned = types(found)["java.util.zip.Inflater$InflaterZStreamRef"]
    assert abs(owned["native_blocks"] - 2 * (KEPT + FORGOTTEN)) <= 8  # the addresses of a few are also stored elsewhere
    assert 2 * FORGOTTEN - 8 <= owned["own"]["garbage_native_blocks"] <= 2 * FORGOTTEN
    assert owned["native_bytes"] > INFLATER * (KEPT + FORGOTTEN - 4)


def check_old(found: Mapping[str, Any]) -> None:
    """Call `check_reachability`, without the classes of which JDK 8 or 11 may still refer to garbage objects."""
    for name, kept, forgotten in (("JavaHeap$Kept", COUNT, 0), ("JavaHeap$Forgotten", 0, COUNT), ("JavaHeap$Weak", 0, COUNT)):
        live, garbage = live_and_garbage(found, name)
        assert live + garbage == kept + forgotten and 0 <= live - kept <= (1 if forgotten else 0), name
    assert sum(live_and_garbage(found, "JavaHeap$Script")) == 25 and sum(live_and_garbage(found, "JavaHeap$Loader")) == 25
    (owner,) = (
        one for name, one in types(found).items() if name in ("java.util.zip.Inflater$InflaterZStreamRef", "java.util.zip.ZStreamRef")
    )
    assert owner["native_bytes"] > INFLATER * (KEPT + FORGOTTEN - 4)


EXPERIMENTAL = "-XX:+UnlockExperimentalVMOptions"
GENERATIONAL = (EXPERIMENTAL, "-XX:ShenandoahGCMode=generational")
CONCURRENT = [
    *((version, "Shenandoah", ()) for version in ("system", *jvms.VERSIONS)),
    *(("11", "Shenandoah", options) for options in ((), PLAIN)),
    ("25.0.2", "Shenandoah", GENERATIONAL),
    ("25.0.2", "Shenandoah", COMPACT),
    *ZGC,
]


@pytest.mark.matrix
@pytest.mark.platform("x86-64", "JVM", of="17, 21, 25")
@pytest.mark.parametrize("words", [(), ("collect",)], ids=["young", "collected"])
@pytest.mark.parametrize(("version", "collector", "options"), CONCURRENT)
def test_collectors_that_move_objects_meanwhile(
    tmp_path: Path, version: str, collector: str, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """With these collectors, jcmd counts only live objects."""
    with java(tmp_path, version, f"-XX:+Use{collector}GC", *options, words=words) as running:
        live = runtime("--pid", str(running.pid))
        with findleaks.attach(running.pid) as process:
            asked = check_inflaters(process)
        file = str(running.kernel_core())
    with findleaks.open(file) as process:
        assert check_inflaters(process) == asked
    for found in (live, runtime(file)):
        ours = by_class(found)
        assert not [one for one in found["warnings"] if "Java heap" in one]
        made = {name: ours[f"JavaHeap${name}"][0] for name in ("Kept", "Forgotten", "Weak", "Script", "Loader", "Kept[][]")}
        assert made == {"Kept": COUNT, "Forgotten": COUNT, "Weak": COUNT, "Script": 25, "Loader": 25, "Kept[][]": COUNT}
        assert ours["long[]"][1] > 1 << 21
        check_reachability(found, version)


@pytest.mark.matrix
def test_a_collector_that_is_not_supported(tmp_path: Path) -> None:
    """`runtime` lists no objects and gives the reason. `runtime`, `find` and `verdict` print the reason."""
    with java(tmp_path, jvms.SYSTEM, "-XX:+UseEpsilonGC") as running:
        where = ("--pid", str(running.pid))
        found = runtime(*where)
        texts = [" ".join(debuggers.findleaks(word, *where).split()) for word in ("runtime", "find", "verdict")]
    assert found["types"] == [] and "its collector is not supported" in found["note"]
    assert all(found["note"] in text for text in texts)


VIRTUAL = [
    (version, collector, options, words)
    for version in jvms.VERSIONS
    for collector, options in (("Serial", ()), ("Parallel", ()), ("G1", ()), ("G1", PLAIN), ("G1", ("-Xint",)))
    for words in ((), ("collect",))
]


@pytest.mark.parametrize(
    ("version", "collector", "options", "words"), [VIRTUAL[0], *(pytest.param(*row, marks=pytest.mark.matrix) for row in VIRTUAL[1:])]
)
def test_virtual_threads(tmp_path: Path, version: str, collector: str, options: tuple[str, ...], words: tuple[str, ...]) -> None:
    """Objects with the frames of virtual threads have the sizes that jcmd prints, and keep alive what the frames refer to."""
    jvms.compile_java(truth.PROGRAMS / "JavaVirtualThreads.java", tmp_path, "--release", "17")
    given = ("-Xmx128m", f"-XX:+Use{collector}GC", *options)
    with cores.Running(jvms.command(version, tmp_path, "JavaVirtualThreads", str(COUNT), *words, options=given), tmp_path) as running:
        histogram(running.pid, version)
        shown = histogram(running.pid, version)
        found = runtime("--pid", str(running.pid))
    ours = by_class(found)
    assert not [one for one in found["warnings"] if "Java heap" in one]
    assert {name for name in {*shown, *ours} if shown.get(name) != ours.get(name) and name not in UNEQUAL} == set()
    assert ours["jdk.internal.vm.StackChunk"][0] >= COUNT
    held = types(found)["JavaVirtualThreads$Held"]
    assert (held["objects"], held["own"].get("garbage_objects", 0)) == (COUNT, 0)


REGIONS = [
    (jvms.SYSTEM, "G1", ()),
    *(
        pytest.param(version, collector, options, marks=pytest.mark.matrix)
        for version, collector, options in (
            *((version, "G1", ()) for version in ("8", "11", *jvms.VERSIONS)),
            *((version, "Shenandoah", ()) for version in (jvms.SYSTEM, *jvms.VERSIONS)),
            ("11", "Shenandoah", (EXPERIMENTAL,)),
            (jvms.SYSTEM, "Shenandoah", ("-XX:NativeMemoryTracking=summary",)),
            ("25.0.2", "Shenandoah", GENERATIONAL),
        )
    ),
]


@pytest.mark.parametrize(("version", "collector", "options"), REGIONS)
def test_dropped_large_objects(tmp_path: Path, version: str, collector: str, options: tuple[str, ...]) -> None:
    """A collector's structures contain the start address of each region. They do not keep an object alive."""
    jvms.compile_java(truth.PROGRAMS / "JavaLargeObjects.java", tmp_path, "--release", "8")
    given = ("-Xms512m", "-Xmx512m", *options, f"-XX:+Use{collector}GC")
    with cores.Running(jvms.command(version, tmp_path, "JavaLargeObjects", options=given), tmp_path) as running:
        live, garbage = live_and_garbage(runtime("--pid", str(running.pid)), "JavaLargeObjects$Piece[]")
    assert live + garbage == 40
    assert 10 <= live <= 11  # a stack may refer to the last one


@pytest.mark.matrix
@pytest.mark.parametrize("options", [(), PLAIN], ids=["compressed", "plain"])
@pytest.mark.parametrize("version", jvms.DEBIAN)
def test_free_chunks_of_cms(tmp_path: Path, version: str, options: tuple[str, ...]) -> None:
    """The old generation has free chunks between objects. Small objects use more bytes than their size."""
    jvms.compile_java(truth.PROGRAMS / "JavaFragments.java", tmp_path, "--release", "8", "-Xlint:-options")
    given = ("-Xmx128m", "-Xmn8m", "-XX:+UseConcMarkSweepGC", "-XX:+ExplicitGCInvokesConcurrent", *options)
    with cores.Running(jvms.command(version, tmp_path, "JavaFragments", options=given), tmp_path) as running:
        histogram(running.pid, version)
        shown = histogram(running.pid, version)
        ours = by_class(runtime("--pid", str(running.pid)))
    assert {name for name in {*shown, *ours} if shown.get(name) != ours.get(name) and name not in UNEQUAL} == set()
    assert ours["JavaFragments$Small"][0] > 60000 and ours["JavaFragments$Large"][0] > 30000


def test_a_heap_with_damage(tmp_path: Path) -> None:
    """Objects before the damage and in other regions are listed, and a warning names the missing bytes."""
    with java(tmp_path, "system", "-XX:+UseSerialGC", words=("collect",)) as running:
        whole = runtime("--pid", str(running.pid))
        core = running.kernel_core()
    place = check_holders(core)
    damage(core, place, 4096)
    found = runtime(str(core))
    assert any("of the Java heap cannot be read as objects" in one for one in found["warnings"]), (hex(place), found["warnings"])
    assert 0 < sum(count for count, _ in by_class(found).values()) < sum(count for count, _ in by_class(whole).values())
    assert live_and_garbage(found, "JavaHeap$Forgotten")[1] <= COUNT


def check_holders(core: Path) -> int:
    """`refs` on a block of zlib names the class of the object that contains the address, and whether the object is garbage. Return the
    address of such an object."""
    rows = map(json.loads, debuggers.findleaks("blocks", "--json", "--limit", "0", "--size", str(STATE), str(core)).splitlines())
    states = [row["address"] for row in rows if "address" in row]
    what = "24-byte Java object, java.util.zip.Inflater$InflaterZStreamRef"
    expected = {f".address, 16 bytes into a {state} {what}" for state in ("live", "garbage")}
    seen: list[str] = []
    words: set[str] = set()
    # The first and the last three blocks usually have owners of both states. Otherwise, more blocks are read.
    for number, address in enumerate([*states[:3], *states[-3:], *states[3:-3]]):
        if number >= 6 and words == expected:
            break
        answer = json.loads(debuggers.findleaks("refs", "--json", "--limit", "0", address, str(core)))
        seen += [place for place in map(debuggers.place, answer["references"]) if "InflaterZStreamRef" in place]
        words = {" ".join(place.split(" at 0x")[0].split()) for place in seen}
    assert words == expected
    return int(seen[0].split(" at ")[1].split()[0].rstrip(",;:"), 16)


def damage(core: Path, address: int, size: int) -> None:
    """Overwrite `size` bytes of a core, from this address on."""
    subject = fuzz_files.Subject(core)
    place = subject.offset(address)
    subject.close()
    with open(core, "r+b") as file:
        file.seek(place)
        file.write(b"\xff" * size)


@pytest.mark.matrix
def test_every_front_end(tmp_path: Path) -> None:
    with java(tmp_path, "system", words=("collect",)) as running:
        core = str(running.kernel_core())
    program, command = str(jvms.jdk() / "bin" / "java"), "leaks runtime --only jvm --json --limit 0"
    expected = runtime(core)["types"]
    for output in (debuggers.gdb([command], program, core), debuggers.lldb([command], program, "-c", core)):
        (found,) = json.loads(debuggers.objects(output)[0])["runtimes"]
        assert found["types"] == expected
