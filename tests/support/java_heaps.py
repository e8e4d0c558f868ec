"""The program JavaHeap.java, and the objects that jcmd counts in it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import jvms
import truth

import cores

COUNT = 1000
UNEQUAL = (
    *("int[]", "jdk.internal.vm.FillerElement[]", "jdk.internal.vm.FillerArray"),
    "java.util.concurrent.locks.AbstractQueuedSynchronizer$ConditionNode",
)
"""Classes whose number of objects may differ in jcmd. The JVM puts fillers into gaps, and makes more of them when jcmd asks for the
histogram. Since JDK 21, the thread Common-Cleaner creates a node each time it begins to wait, which is once a minute."""

PLAIN = ("-XX:-UseCompressedOops", "-XX:-UseCompressedClassPointers")
COMPACT = ("-XX:+UseCompactObjectHeaders",)
ROOMY = "-Xmx1g"
"""A maximum heap size that is large enough that ZGC starts no collection by itself."""
ZGC = [
    *((version, "Z", (ROOMY,)) for version in ("system", *jvms.VERSIONS)),
    ("21.0.4", "Z", (ROOMY, "-XX:+ZGenerational")),
    ("25.0.2", "Z", (ROOMY, *COMPACT)),
    ("11", "Z", (ROOMY,)),
]
"""JDK version, collector and JVM options of each run with ZGC, without and with generations."""


@contextmanager
def java(folder: Path, version: str, *options: str, words: tuple[str, ...] = ()) -> Iterator[cores.Running]:
    release = "8" if version in jvms.DEBIAN else "17"
    jvms.compile_java(truth.PROGRAMS / "JavaHeap.java", folder, "--release", release, "-Xlint:-options")
    given = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UnlockExperimentalVMOptions", *options]  # for Shenandoah of JDK 11
    with cores.Running(jvms.command(version, folder, "JavaHeap", str(COUNT), *words, options=given), folder) as running:
        yield running


def histogram(pid: int, version: str) -> Mapping[str, tuple[int, int]]:
    """Return the number of objects of each class, and their bytes, as jcmd prints them. Classes with the same name are added up."""
    words = [jvms.jcmd(version), str(pid), "GC.class_histogram", "-all"]
    text = subprocess.run(words, check=True, capture_output=True, text=True, timeout=180).stdout
    found: dict[str, tuple[int, int]] = {}
    for objects, size, name in re.findall(r"^ *\d+: +(\d+) +(\d+) +(\S+)", text, re.M):
        name = java_name(name)
        if version in jvms.DEBIAN:  # JDK 8 and 11 print a hash or an address after the name of a lambda's class
            name = re.sub(r"/(0x)?[0-9a-f]+$", "", name)
        count, total = found.get(name, (0, 0))
        found[name] = count + int(objects), total + int(size)
    return found


NAMES = {"B": "byte", "C": "char", "D": "double", "F": "float", "I": "int", "J": "long", "S": "short", "Z": "boolean"}


def java_name(name: str) -> str:
    """Return the name in Java source of a class, given the name that jcmd prints."""
    element = name.lstrip("[")
    depth = len(name) - len(element)
    if depth:
        element = element[1:-1] if element.startswith("L") else NAMES[element]
    return element + "[]" * depth
