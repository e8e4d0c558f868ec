"""Objects that a program dropped are garbage, although the JVM's own memory contains their addresses."""

from __future__ import annotations

import json
from pathlib import Path

import jvms
import pytest
import truth
from debuggers import findleaks
from java_frames import VERSIONS

from cores import Running

COUNT = 400
STALE, STALE_ELSEWHERE = 40, 12
"""The maximum number of objects of all classes to which stale words of stacks, and of compilers that have just ended, may refer: usually
0 to 4. If the stale words of the JVM's own memory counted, they would refer to 100 class loaders in JDK 17, and to 15 in JDK 21."""
QUICK = (jvms.SYSTEM, "Serial")
EACH = [(version, collector) for version in VERSIONS for collector in ("Serial", "G1")]


@pytest.mark.parametrize(("version", "collector"), [QUICK, *(pytest.param(*one, marks=pytest.mark.matrix) for one in EACH if one != QUICK)])
def test_dropped_objects(version: str, collector: str, tmp_path: Path) -> None:
    """The heap is so large that the JVM does not collect garbage. With -Xbatch, threads wait for the compilers."""
    jvms.compile_java(truth.PROGRAMS / "JavaDropped.java", tmp_path, "--release", "8")
    options = ("-Xms400m", "-Xmx400m", "-Xmn300m", "-XX:MetaspaceSize=200m", "-Xbatch", f"-XX:+Use{collector}GC")
    with Running(jvms.command(version, tmp_path, "JavaDropped", str(COUNT), options=options), tmp_path) as running:
        where = ("--pid", str(running.pid)) if version != jvms.SYSTEM else (str(running.kernel_core()),)
        (found,) = json.loads(findleaks("runtime", "--only", "jvm", "--json", "--limit", "0", *where))["runtimes"]
    counts = {row["name"]: (row["objects"], row["own"]["garbage_objects"]) for row in found["types"]}
    dropped = {name: counts[f"JavaDropped${name}"] for name in ("Loader", "Lock", "Failure")}
    assert {name: live + garbage for name, (live, garbage) in dropped.items()} == dict.fromkeys(dropped, COUNT)
    assert sum(live for live, _ in dropped.values()) <= (STALE if version == jvms.SYSTEM else STALE_ELSEWHERE), dropped


ENDED = 100


ENDED_EACH = [(version, "-XX:+UseSerialGC") for version in VERSIONS] + [(jvms.SYSTEM, "-XX:+UseZGC")]


@pytest.mark.parametrize(
    ("version", "collector"), [one if one[0] == jvms.SYSTEM else pytest.param(*one, marks=pytest.mark.matrix) for one in ENDED_EACH]
)
def test_objects_of_threads_that_have_ended(version: str, collector: str, tmp_path: Path) -> None:
    """Up to JDK 17, the JVM keeps the blocks of JNI handles of threads that have ended. Each has a stale handle of the Thread object. The
    heap is so large that the JVM does not collect garbage, and malloc() fills new blocks with a pattern."""
    jvms.compile_java(truth.PROGRAMS / "EndedThreads.java", tmp_path, "--release", "8")
    options = ("-Xms1g", "-Xmx1g", collector, "-XX:TieredStopAtLevel=1")
    command = ["env", "MALLOC_PERTURB_=165", *jvms.command(version, tmp_path, "EndedThreads", str(ENDED), options=options)]
    with Running(command, tmp_path) as running:
        (found,) = json.loads(findleaks("runtime", "--only", "jvm", "--json", "--limit", "0", "--pid", str(running.pid)))["runtimes"]
    (row,) = [row for row in found["types"] if row["name"] == "EndedThreads$Loader"]
    assert row["objects"] + row["own"]["garbage_objects"] == ENDED
    assert row["objects"] <= STALE
