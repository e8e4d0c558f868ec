"""Objects that a program dropped are garbage, although words of the JVM's own memory contain their addresses."""

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
STALE = 4
"""The maximum number of objects of one class to which stale words of stacks, and of compilers that have just ended, may refer."""
QUICK = (jvms.SYSTEM, "Serial")
EACH = [(version, collector) for version in VERSIONS for collector in ("Serial", "G1")]


@pytest.mark.parametrize(("version", "collector"), [QUICK, *(pytest.param(*one, marks=pytest.mark.matrix) for one in EACH if one != QUICK)])
def test_dropped_objects(version: str, collector: str, tmp_path: Path) -> None:
    """The heap is large enough that the JVM collects no garbage, and -Xbatch makes threads wait for the compilers."""
    jvms.compile_java(truth.PROGRAMS / "JavaDropped.java", tmp_path, "--release", "8")
    options = ("-Xms400m", "-Xmx400m", "-Xmn300m", "-XX:MetaspaceSize=200m", "-Xbatch", f"-XX:+Use{collector}GC")
    with Running(jvms.command(version, tmp_path, "JavaDropped", str(COUNT), options=options), tmp_path) as running:
        where = ("--pid", str(running.pid)) if version != jvms.SYSTEM else (str(running.kernel_core()),)
        (found,) = json.loads(findleaks("runtime", "--only", "jvm", "--json", "--limit", "0", *where))["runtimes"]
    counts = {row["name"]: (row["objects"], row["own"]["garbage_objects"]) for row in found["types"]}
    for name in ("Loader", "Lock", "Failure"):
        live, garbage = counts[f"JavaDropped${name}"]
        assert (live + garbage, live <= STALE) == (COUNT, True), (name, live)
