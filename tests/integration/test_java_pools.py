"""`runtime` finds the metaspace and the code cache of JVMs before JDK 16, and both have as many bytes as the JVM itself reports."""

from __future__ import annotations

import json
from pathlib import Path

import debuggers
import jvms
import pytest
import truth

import cores


@pytest.mark.parametrize("picture", ["live", "kernel"])
@pytest.mark.parametrize("version", ["8", *(pytest.param(one, marks=pytest.mark.matrix) for one in ("11", jvms.SYSTEM))])
def test_pools(version: str, picture: str, tmp_path: Path) -> None:
    """With -Xint, no compiler allocates code after the program has printed the sizes."""
    jvms.compile_java(truth.PROGRAMS / "JavaPools.java", tmp_path, "--release", "8", "-Xlint:-options")
    with cores.Running(jvms.command(version, tmp_path, "JavaPools", options=["-Xint", "-Xmx64m"]), tmp_path) as running:
        printed = [line.split(" ", 1) for line in running.output.splitlines() if line[:1].isdigit()]
        where = ["--pid", str(running.pid)] if picture == "live" else [str(running.kernel_core())]
        (found,) = json.loads(debuggers.findleaks("runtime", "--only", "jvm", "--no-native", "--json", *where))["runtimes"]
    sizes = {part["name"]: part["bytes"] for part in found["parts"]}
    pools = {name: int(size) for size, name in printed}
    assert sizes["metaspace"] == pools["Metaspace"]
    assert sizes["code cache"] == sum(size for name, size in pools.items() if "Code" in name)
