"""Cores of processes with managed heaps: if the mapping of a native library is missing, a warning is printed, and the result is not
trusted. Complete cores are trusted."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import building
import debuggers
import jvms
import pytest
import real
import truth
from variants import mark_matrix_except

from cores import Running

KINDS = ("whole", "excluded", "inner")
NODE = "require('fs').writeSync(1, 'ready\\n'); setInterval(() => {}, 1e8)"
JVM = ("-Xmx64m", "-XX:CompressedClassSpaceSize=16m", "-XX:ReservedCodeCacheSize=16m")  # gcore writes all reserved memory
COLLECTORS = ("Serial", "Parallel", "G1", "Z")


def _library(folder: Path) -> Path:
    return building.compile_program(folder, "lacking.c", "-std=gnu11", "-O1", "-g", "-shared", "-fPIC", name="liblacking.so")


def check(words: Sequence[str], folder: Path, kind: str, **environment: str) -> None:
    """Check the results of `find` for the program's cores, by gcore and by the kernel."""
    with Running(words, folder / "run", {**os.environ, **environment, "LACKING": kind}) as run:
        lines = [line.split() for line in run.output.splitlines()]
        (mapping,) = ((int(line[1], 16), int(line[2])) for line in lines if line[0] == "mapping")
        lost = [int(line[1], 16) for line in lines if line[0] == "lost"]
        by_gdb = run.gcore().rename(folder / "gcore.core")
        pictures = [by_gdb, run.kernel_core().rename(folder / "kernel.core")]
    for core in pictures:
        found: dict[str, Any] = json.loads(debuggers.findleaks("find", "--json", str(core)))
        warnings = [text for text in found["warnings"] if "pointers in it are not seen" in text]
        assert found["totals"]["definite"]["blocks"] >= len(lost)
        assert found["trusted"] == (kind == "whole"), (core.name, found["warnings"])
        assert len(warnings) == (kind != "whole"), warnings
        assert all(f"({mapping[0]:#x}-" in text for text in warnings)
        core.unlink()


@pytest.mark.parametrize("kind", mark_matrix_except(KINDS, "excluded"))
def test_node(kind: str, tmp_path: Path) -> None:
    check([real.executable("node"), "-e", NODE], tmp_path, kind, LD_PRELOAD=str(_library(tmp_path)))


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("collector", COLLECTORS)
def test_jvm(kind: str, collector: str, tmp_path: Path) -> None:
    jvms.compile_java(truth.PROGRAMS / "Lacking.java", tmp_path)
    words = ["java", *JVM, f"-XX:+Use{collector}GC", "-cp", str(tmp_path), "Lacking", str(_library(tmp_path))]
    check(words, tmp_path, kind)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
def test_go(kind: str, tmp_path: Path) -> None:
    for name in ("lacking.go", "lacking.c"):
        (tmp_path / name).write_bytes((truth.PROGRAMS / name).read_bytes())
    source, program = tmp_path / "lacking.go", tmp_path / "lacking"
    (tmp_path / "lacking.c").rename(tmp_path / "lacking.inc")  # otherwise Go compiles the program a second time
    source.write_text(source.read_text().replace("lacking.c", "lacking.inc"))
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "", "CGO_ENABLED": "1"}
    subprocess.run(["go", "build", "-o", program, source], check=True, env=environment, cwd=tmp_path)
    check([str(program)], tmp_path, kind, GOTRACEBACK="crash")
