"""Cores of processes that draw random numbers with glibc 2.41 or newer are trusted, although they lack the states of the generators."""

from __future__ import annotations

import json
from pathlib import Path

import debuggers
import libcs
import pytest
import truth

from cores import Running

LOST = 3  # blocks that the program leaks


@pytest.mark.parametrize("version", ["2.41", pytest.param("2.43", marks=pytest.mark.matrix)])
def test_cores_without_the_states_are_trusted(version: str, tmp_path: Path) -> None:
    program = libcs.get(version).compile(truth.PROGRAMS / "random_states.c", tmp_path / "program", ["-O1", "-Wall", "-Wextra", "-Werror"])
    with Running([str(program)], tmp_path / "run") as run:
        own = tmp_path / "own.core"
        debuggers.findleaks("snapshot", "--weight", "core", "-o", str(own), "--pid", str(run.pid))
        pictures = [own, run.gcore().rename(tmp_path / "gcore.core"), run.kernel_core().rename(tmp_path / "kernel.core")]
    for core in pictures:
        found = json.loads(debuggers.findleaks("find", "--json", str(core)))
        assert found["totals"]["definite"]["blocks"] == LOST
        assert found["trusted"], (core.name, found["warnings"])
