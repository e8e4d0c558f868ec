"""The heap dumps of findleaks have the objects of those that the JVM itself writes at the same stop, with the same values."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from collections import Counter
from pathlib import Path

import debian
import debuggers
import frame_stops
import heap_dumps
import jvms
import maven
import pytest
import truth
from java_heaps import COMPACT, COUNT, PLAIN, ROOMY, UNEQUAL, ZGC, histogram, java, java_name

import cores

READER = "org.netbeans.modules:org-netbeans-lib-profiler:RELEASE210"
READER_HASH = "2cb234921cdb901ba9543fdf43ae4577f41ea4ab181afced5e67b71e4e60d6ab"
"""The library with which NetBeans and VisualVM read heap dumps."""
CHAR = 5
"""The type of the elements of a String in JDK 8; newer versions have bytes, in Latin-1 if possible."""
SAME = 0.99
"""The minimum share of all objects that must be in both dumps: the JVM creates some objects when it writes a dump."""


def dump_of_jvm(pid: int, version: str, file: Path) -> heap_dumps.Dump:
    """Return the heap dump that jcmd writes. jcmd runs twice, because the first run allocates objects."""
    for _ in range(2):
        file.unlink(missing_ok=True)
        words = [jvms.jcmd(version), str(pid), "GC.heap_dump", "-all", str(file)]
        subprocess.run(words, check=True, capture_output=True, timeout=cores.PATIENCE)
    return heap_dumps.read(file)


def dump(file: Path, *where: str) -> heap_dumps.Dump:
    """Return the heap dump that findleaks writes."""
    text = debuggers.findleaks("runtime", "--only", "jvm", "--no-native", "-o", str(file), *where)
    assert "a heap dump, for Eclipse MAT and VisualVM" in text and "of objects cannot be read" not in text
    return heap_dumps.read(file)


MATRIX = [
    *(("system", collector, ()) for collector in ("Serial", "Parallel", "Shenandoah")),
    *((version, collector, ()) for version in jvms.VERSIONS for collector in ("Serial", "Parallel", "G1", "Shenandoah")),
    *((version, collector, ()) for version in jvms.DEBIAN for collector in ("Serial", "Parallel", "G1", "ConcMarkSweep")),
    *((version, "G1", PLAIN) for version in ("system", *jvms.VERSIONS, *jvms.DEBIAN)),
    *(("25.0.2", collector, COMPACT) for collector in ("Serial", "Parallel", "G1")),
    ("system", "G1", ("-XX:ObjectAlignmentInBytes=16",)),
    ("system", "G1", ("-Xmx40g", "-Xms64m")),  # references are shifted, relative to another base
    *ZGC,
]
ROWS = [("system", "G1", ()), *(pytest.param(*row, marks=pytest.mark.matrix) for row in MATRIX)]


@pytest.mark.platform("x86-64", "JVM", of="17, 21, 25")
@pytest.mark.parametrize(("version", "collector", "options"), ROWS)
def test_a_heap_dump_is_that_of_the_jvm(tmp_path: Path, version: str, collector: str, options: tuple[str, ...]) -> None:
    with java(tmp_path, version, f"-XX:+Use{collector}GC", *options, words=("collect",)) as running:
        theirs = dump_of_jvm(running.pid, version, tmp_path / "theirs.hprof")
        counts = histogram(running.pid, version)
        counts = histogram(running.pid, version)
        found = dump(tmp_path / "live.hprof", "--pid", str(running.pid))
        again = dump(tmp_path / "core.hprof", str(running.kernel_core()))
    if collector not in ("Shenandoah", "Z"):  # these collectors count only live objects
        ours = Counter({java_name(name).replace("+0x", "/0x"): count for name, count in found.by_class().items()})
        assert {name for name in {*ours, *counts} if ours[name] != counts.get(name, (0, 0))[0] and name not in UNEQUAL} == set()
    for one in (found, again):
        check_values(one)
        check_objects(one, theirs)
        check_classes(one, theirs)
        check_roots(one, theirs)


def check_objects(ours: heap_dumps.Dump, theirs: heap_dumps.Dump) -> None:
    """Check that objects of both dumps have the same class and the same values, and that few are in one dump only. The program waits, but
    a few threads of the JVM run."""
    both = ours.instances.keys() & theirs.instances.keys()
    assert len(both) >= SAME * len(theirs.instances)
    changed = [one for one in both if ours.values(one) != theirs.values(one)]
    assert not [one for one in changed if ours.names[ours.instances[one][0]].startswith("JavaHeap")]
    assert len(changed) <= (1 - SAME) * len(both)
    assert ours.arrays.keys() >= {one for one, (kind, _) in theirs.arrays.items() if "JavaHeap" in theirs.names[kind]}
    same = [one for one in theirs.arrays if ours.arrays.get(one) == theirs.arrays[one]]
    assert len(same) >= SAME * len(theirs.arrays)
    same = [one for one in theirs.numbers if ours.numbers.get(one) == theirs.numbers[one]]
    assert len(same) >= SAME * len(theirs.numbers)


def check_classes(ours: heap_dumps.Dump, theirs: heap_dumps.Dump) -> None:
    """Check that all classes have the same superclass, loader, fields, and values of static fields."""
    assert ours.classes.keys() >= theirs.classes.keys()
    differing = Counter[str]()
    for identifier, expected in theirs.classes.items():
        found = ours.classes[identifier]
        assert (found.name, found.super_class, found.loader, found.size) == (
            expected.name,
            expected.super_class,
            expected.loader,
            expected.size,
        )
        assert sorted(found.fields) == sorted(expected.fields)
        for name, value in expected.statics.items():  # JDK 8 writes the names of its own fields without brackets
            differing[found.name] += found.statics.get(name, found.statics.get(f"<{name}>")) != value
    assert not [name for name, count in differing.items() if count and name.startswith("JavaHeap")]
    assert sum(differing.values()) <= (1 - SAME) * len(theirs.classes)


def check_roots(ours: heap_dumps.Dump, theirs: heap_dumps.Dump) -> None:
    """Check that each root of the JVM is a root, that all threads are roots, and that roots are objects or classes."""
    assert {one for _, one in theirs.roots} - {one for _, one in ours.roots} == set()
    kinds = {tag: {one for kind, one in ours.roots if kind == tag} for tag, _ in ours.roots}
    assert kinds[heap_dumps.THREAD] >= {one for tag, one in theirs.roots if tag == heap_dumps.THREAD}
    assert {ours.class_named("java.lang.Object").name, "java.lang.String"} <= {
        ours.classes[one].name for one in kinds[heap_dumps.STICKY_CLASS]
    }
    assert kinds[heap_dumps.JNI_GLOBAL] and kinds[heap_dumps.JAVA_FRAME]
    known = {*ours.instances, *ours.arrays, *ours.numbers, *ours.classes}
    assert {one for _, one in ours.roots} <= known


def check_values(found: heap_dumps.Dump) -> None:
    """Check that known objects have the values and references that the program stored."""
    program, values_class = found.class_named("JavaHeap"), found.class_named("JavaHeap$Values")
    (one,) = found.of_class("JavaHeap$Values")
    values = found.values(one)
    expected = {
        "truth": 1,
        "small": -8,
        "letter": ord("ж"),
        "medium": -1600,
        "number": -320000,
        "large": -6400000000,
        "single": 1.5,
        "precise": -2.25,
    }
    assert {name: values[f"JavaHeap$Values.{name}"] for name in expected} == expected
    statics = [1, -9, ord("я"), -1700, -330000, -6500000000, 2.5, -3.25, one]
    assert [values_class.statics[f"the{name}"] for name in (*map(str.title, expected), "Values")] == statics
    assert (values["JavaHeap$Kept.number"], values["JavaHeap$Kept.next"]) == (42, program.statics["kept"])
    assert text_of(found, values["JavaHeap$Values.text"]) == "text"
    things = values["JavaHeap$Values.things"]
    assert isinstance(things, int) and found.elements(things)[:2] == (0, one)
    assert found.names[found.arrays[things][0]] == "[Ljava.lang.Object;"
    assert text_of(found, found.elements(things)[2]) == "thing"
    kept, seen = program.statics["kept"], []
    while kept:
        assert isinstance(kept, int)
        node = found.values(kept)
        seen.append(node["JavaHeap$Kept.number"])
        kept = node["JavaHeap$Kept.next"]
    assert seen == list(range(COUNT - 1, -1, -1))
    (many,) = (one for one, (kind, data) in found.numbers.items() if (kind, len(data)) == (10, 4 * 1500000))
    assert found.elements(many) == tuple(range(0, 4500000, 3))
    (rest,) = (one for one, (_, data) in found.arrays.items() if len(data) == 8 * 1100000)
    assert set(found.elements(rest)[:-1]) == {0} and found.elements(rest)[-1] == many
    check_loaders(found)


def check_loaders(found: heap_dumps.Dump) -> None:
    """Check that each of the 25 loaders has loaded one class of the same name."""
    scripts = {identifier: one for identifier, one in found.classes.items() if one.name == "JavaHeap$Script"}
    loaders = [one.loader for one in scripts.values()]
    assert sorted(loaders) == sorted(found.of_class("JavaHeap$Loader")) and len(loaders) == 25
    assert Counter(class_id for class_id, _ in found.instances.values() if class_id in scripts) == dict.fromkeys(scripts, 1)
    assert all(found.names[found.arrays[int(str(one.statics["table"]))][0]] == "[Ljava.lang.Object;" for one in scripts.values())


def text_of(found: heap_dumps.Dump, text: object) -> str:
    assert isinstance(text, int)
    value = found.values(text)["java.lang.String.value"]
    assert isinstance(value, int)
    kind, data = found.numbers[value]
    return data.decode("utf-16-be" if kind == CHAR else "latin-1")


VIRTUAL = [
    ("21.0.4", "Serial", ()),
    *(
        pytest.param(version, collector, options, marks=pytest.mark.matrix)
        for version in jvms.VERSIONS
        for collector, options in (("Parallel", ()), ("G1", PLAIN), ("Shenandoah", ()), ("Z", (ROOMY,)))
    ),
    pytest.param("21.0.4", "Z", (ROOMY, "-XX:+ZGenerational"), marks=pytest.mark.matrix),
]


def virtual_threads(folder: Path, version: str, *options: str) -> cores.Running:
    jvms.compile_java(truth.PROGRAMS / "JavaVirtualThreads.java", folder, "--release", "17")
    words = [str(COUNT // 2), "collect"]
    return cores.Running(jvms.command(version, folder, "JavaVirtualThreads", *words, options=("-Xmx128m", *options)), folder)


@pytest.mark.parametrize(("version", "collector", "options"), VIRTUAL)
def test_frames_of_virtual_threads_are_roots(tmp_path: Path, version: str, collector: str, options: tuple[str, ...]) -> None:
    """The program keeps the threads, and only their frames refer to the objects of the class Held. Ended threads are not roots."""
    with virtual_threads(tmp_path, version, f"-XX:+Use{collector}GC", *options) as running:
        found = dump(tmp_path / "heap.hprof", "--pid", str(running.pid))
    threads = {one for tag, one in found.roots if tag == heap_dumps.THREAD and one in found.instances}
    virtual = [one for one in threads if found.names[found.instances[one][0]] == "java.lang.VirtualThread"]
    assert len(virtual) == COUNT // 2 < len(found.of_class("java.lang.VirtualThread"))
    held = set(found.of_class("JavaVirtualThreads$Held"))
    assert len(held) == COUNT // 2 and held <= found.reachable()
    assert held <= {one for tag, one in found.roots if tag == heap_dumps.JAVA_FRAME}


def test_a_running_virtual_thread_is_a_root(tmp_path: Path) -> None:
    """A running virtual thread is a root, with the frames of its carrier thread."""
    jvms.compile_java(truth.PROGRAMS / "JavaVirtualFrames.java", tmp_path, "--release", "17")
    program = frame_stops.Busy(jvms.command("25.0.2", tmp_path, "JavaVirtualFrames"), os.environ, tmp_path / "output")
    try:
        program.read_line(cores.READY)
        found = dump(tmp_path / "heap.hprof", "--pid", str(program.pid))
    finally:
        program.end()
    threads = [one for tag, one in found.roots if tag == heap_dumps.THREAD and one in found.instances]
    assert [found.names[found.instances[one][0]] for one in threads].count("java.lang.VirtualThread") == 1


@pytest.mark.matrix
def test_memory_that_a_core_lacks(tmp_path: Path) -> None:
    """If the core lacks part of an array, that part is written as zeros, and a message gives the number of missing bytes. Objects after
    it are missing."""
    with java(tmp_path, "system", "-XX:+UseSerialGC", words=("collect",)) as running:
        core = running.kernel_core()
    whole = dump(tmp_path / "whole.hprof", str(core))
    array = next(one for one, (kind, data) in whole.numbers.items() if (kind, len(data)) == (10, 4 * 1500000))
    cut_memory(core, array + 4096)
    text = debuggers.findleaks("runtime", "--only", "jvm", "--no-native", "-o", str(tmp_path / "cut.hprof"), str(core))
    (kib,) = re.findall(r"([0-9.]+) MiB of objects cannot be read, and are zeros", text)
    assert 5.6 < float(kib) < 5.8
    found = heap_dumps.read(tmp_path / "cut.hprof")
    elements = found.elements(array)
    assert len(elements) == 1500000 and elements[:1000] == tuple(range(0, 3000, 3)) and set(elements[2000:]) == {0}
    assert 0 < len(found.instances) <= len(whole.instances)


def cut_memory(core: Path, address: int) -> None:
    """Remove the memory of a core from this address to the end of its segment (elf.h, Elf64_Phdr)."""
    with open(core, "r+b") as file:
        head = file.read(64)
        (start,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        for at in range(start, start + size * count, size):
            file.seek(at)
            kind, _, _, low, _, length = struct.unpack("<IIQQQQ", file.read(40))
            if kind == 1 and low <= address < low + length:
                file.seek(at + 32)
                file.write(struct.pack("<QQ", address - low, address - low))


def read_with_library(folder: Path) -> str:
    """Return what the library of VisualVM finds in heap.hprof."""
    library = maven.jar(READER, READER_HASH, debian.cache() / "libraries" / "heap-dumps")
    jvms.compile_java(truth.PROGRAMS / "HeapDumpReader.java", folder, "-cp", str(library))
    words = ["java", "-cp", f"{library}:{folder}", "HeapDumpReader", str(folder / "heap.hprof")]
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=cores.PATIENCE).stdout


@pytest.mark.matrix
@pytest.mark.parametrize("version", jvms.VERSIONS)
def test_the_library_of_visualvm_finds_virtual_threads(tmp_path: Path, version: str) -> None:
    """The library finds each waiting virtual thread as a root, and the object in the frames of the thread as a root of this thread."""
    with virtual_threads(tmp_path, version, "-XX:+UseG1GC") as running:
        dump(tmp_path / "heap.hprof", "--pid", str(running.pid))
    rows = [line.split(maxsplit=4) for line in read_with_library(tmp_path).splitlines() if line.startswith("root ")]
    counts = {(thread, name, kind): int(count) for _, count, thread, name, kind in rows}
    virtual, held = "java.lang.VirtualThread", "JavaVirtualThreads$Held"
    assert counts["-", virtual, "thread object"] == COUNT // 2
    assert counts[virtual, held, "Java frame"] == COUNT // 2
    assert not [key for key in counts if key[0] == "none"]


@pytest.mark.matrix
def test_the_library_of_visualvm_reads_a_heap_dump(tmp_path: Path) -> None:
    """It finds the same objects, the list of the program, no root without an object, and paths from roots to live objects only."""
    with java(tmp_path, "system", words=("collect",)) as running:
        found = dump(tmp_path / "heap.hprof", "--pid", str(running.pid))
    text = read_with_library(tmp_path)
    rows = [line.split(maxsplit=2) for line in text.splitlines()]
    counts = Counter({java_name(name): count for name, count in found.by_class().items()})
    counts["java.lang.Class"] -= len(found.classes)  # the library does not count classes as instances
    theirs = Counter[str]()
    for kind, count, *name in rows:
        theirs[" ".join(name)] += int(count) if kind == "class" else 0
    assert +theirs == +counts
    assert ["roots", str(len({one for _, one in found.roots}))] in rows or ["roots", str(len(found.roots))] in rows
    assert ["list", str(COUNT)] in rows and "missing root" not in text
    reached = {row[2].split()[1]: int(row[1]) for row in rows if row[0] == "reached"}
    assert (reached["JavaHeap$Kept"], reached["JavaHeap$Weak"]) == (COUNT, 0) and reached["java.lang.Thread"] >= 5


def test_a_process_without_a_java_heap(tmp_path: Path) -> None:
    """findleaks prints one message and writes no file."""
    file = tmp_path / "heap.hprof"
    with cores.Running(["sh", "-c", "echo ready; exec sleep 1000"], tmp_path / "program") as running:
        done = debuggers.run_cli("runtime", "-o", str(file), "--pid", str(running.pid))
    assert (done.returncode, [one.name for one in tmp_path.iterdir()]) == (2, ["program"])
    assert done.stderr == f"findleaks: {file}: there is no Java heap to write; found: no managed runtime\n"
