"""Local JNI references keep objects alive until the native method returns. The JVM does not clear their handles, which then contain stale
references."""

from __future__ import annotations

import subprocess
from pathlib import Path

import debuggers
import jvms
import pytest
import truth
from variants import mark_matrix_except

import cores

COUNT = 200
STALE = 64
"""The maximum number of dropped objects that may count as live because of stale words on stacks and in registers. If stale handles
counted as references, all COUNT dropped objects would be live."""


@pytest.mark.platform("x86-64", "JVM", of="8, 11")
@pytest.mark.platform("x86-64", "JVM", of="17, 21, 25")
@pytest.mark.parametrize("version", mark_matrix_except((jvms.SYSTEM, *jvms.VERSIONS, *jvms.DEBIAN), jvms.SYSTEM))
def test_local_references_of_a_method_that_has_returned(tmp_path: Path, version: str) -> None:
    headers, library = jvms.jdk() / "include", tmp_path / "locals.so"
    flags = [*jvms.FLAGS, f"-I{headers}", f"-I{headers}/linux"]
    subprocess.run(["gcc", *flags, "-o", library, truth.PROGRAMS / "jni_locals.c"], check=True)
    jvms.compile_java(truth.PROGRAMS / "JniLocals.java", tmp_path, "--release", "8", "-Xlint:-options")
    command = jvms.command(version, tmp_path, "JniLocals", str(library), str(COUNT), options=("-Xmx64m", "-XX:+UseSerialGC"))
    with cores.Running(command, tmp_path) as running:
        found = debuggers.runtime_page("jvm", "--limit", "0", "--pid", str(running.pid))
    types = {one["name"]: (one["objects"], one["own"].get("garbage_objects", 0)) for one in found["types"]}
    assert types["JniLocals$Held"] == (COUNT, 0)
    live, garbage = types["JniLocals$Dropped"]
    assert live + garbage == COUNT and live <= STALE
