"""Unused slots of deques, sets, generators and frames hold nothing: leaked objects that stand in them are lost."""

from __future__ import annotations

import json
from pathlib import Path

import debuggers
import mallocs_python
import other_pythons
import pytest
import truth
from mallocs_python import SUITES

import cores

COUNT = 200
LEAST = 0.95
"""Share of the leaked objects of each class that is definitely lost: a word elsewhere may hold a few."""

INCREMENTAL = "3.14.3"
SHARED_SPARE = {"3.9": {"__main__.DequeEnd", "__main__.DequeStart"}}
"""Up to 3.10 all deques share the blocks that they keep for reuse, which are not recognised."""

VERSIONS = [pytest.param(v, marks=() if v == "3.11" else pytest.mark.matrix) for v in (*SUITES, INCREMENTAL)]


@pytest.mark.parametrize("version", VERSIONS)
def test_unused_slots_hold_nothing(version: str, tmp_path: Path) -> None:
    python = other_pythons.incremental() if version == INCREMENTAL else mallocs_python.get(version)
    program = str(truth.PROGRAMS / "python_unused_slots.py")
    with cores.Running(python.command(program, str(COUNT)), tmp_path, python.environment()) as one:
        truly = {name: int(count) for name, count in (line.split() for line in one.output.splitlines()[:-1])}
        found = json.loads(debuggers.findleaks("find", "--json", str(one.gcore())))
    definite = {group["type"]: group["blocks"] for group in found["groups"] if group["kind"] == "definite"}
    assert len(truly) == 12 and min(truly.values()) >= COUNT // 2
    for name, count in truly.items():
        if name not in SHARED_SPARE.get(version, ()):
            assert LEAST * count <= definite.get(name, 0) <= count, name
    assert set(definite) <= set(truly)
