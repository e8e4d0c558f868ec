"""`runtime` finds the metaspace and the code cache, also of JVMs before JDK 16. Both have as many bytes as the JVM itself reports."""

from __future__ import annotations

from pathlib import Path

import debuggers
import jvms
import pytest
import truth
from variants import mark_matrix_except

import cores

MORE = [("8", "Serial"), ("8", "G1"), ("8", "ConcMarkSweep"), ("11", "G1"), (jvms.SYSTEM, "G1")]


@pytest.mark.parametrize("picture", mark_matrix_except(["live", "kernel"], "live"))
@pytest.mark.parametrize(("version", "collector"), [("8", "Parallel"), *(pytest.param(*one, marks=pytest.mark.matrix) for one in MORE)])
def test_pools(version: str, collector: str, picture: str, tmp_path: Path) -> None:
    """With -Xint, no compiler allocates code after the program has printed the sizes."""
    jvms.compile_java(truth.PROGRAMS / "JavaPools.java", tmp_path, "--release", "8", "-Xlint:-options")
    options = ["-Xint", "-Xmx64m", f"-XX:+Use{collector}GC"]
    with cores.Running(jvms.command(version, tmp_path, "JavaPools", options=options), tmp_path) as running:
        printed = [line.split(" ", 1) for line in running.output.splitlines() if line[:1].isdigit()]
        where = ["--pid", str(running.pid)] if picture == "live" else [str(running.kernel_core())]
        found = debuggers.runtime_page("jvm", "--no-native", *where)
    sizes = {part["name"]: part["bytes"] for part in found["parts"]}
    pools = {name: int(size) for size, name in printed}
    assert sizes["metaspace"] == pools["Metaspace"]
    assert sizes["code cache"] == sum(size for name, size in pools.items() if "Code" in name)
