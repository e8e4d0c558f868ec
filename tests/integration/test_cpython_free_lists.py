"""What waits in CPython's free lists holds nothing: leaked objects that stand in it are lost, held against what the program leaked."""

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

COUNT = 2000
LEAST = 0.95
"""Share of the leaked objects that is definitely lost. The program's holders were one third tuples, lists or dictionaries of a size."""

INCREMENTAL = "3.14.3"
VERSIONS = [pytest.param(v, marks=() if v == "3.11" else pytest.mark.matrix) for v in (*SUITES, INCREMENTAL)]


@pytest.mark.parametrize("version", VERSIONS)
def test_former_contents_hold_nothing(version: str, tmp_path: Path) -> None:
    python = other_pythons.incremental() if version == INCREMENTAL else mallocs_python.get(version)
    program = str(truth.PROGRAMS / "python_free_lists.py")
    with cores.Running(python.command(program, str(COUNT)), tmp_path, python.environment()) as one:
        found = json.loads(debuggers.findleaks("find", "--json", str(one.gcore())))
    groups = {(group["kind"], group["type"]): group["blocks"] for group in found["groups"]}
    assert LEAST * COUNT <= groups["definite", "__main__.Session"] <= COUNT
    (counts,) = (one for one in found["reference_counts"]["types"] if one["name"] == "__main__.Session")
    assert counts["objects"] == counts["excess"] == groups["definite", "__main__.Session"]
