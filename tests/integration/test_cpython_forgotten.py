"""An extension that does not call Py_DECREF leaks objects of the interpreter's own types. `find` counts the objects of each type."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import mallocs_python
import other_pythons
import pytest
import truth
from debuggers import findleaks

import cores

VERSIONS = [pytest.param(one, marks=() if one == "3.11" else pytest.mark.matrix) for one in other_pythons.PYTHONS if one != "3.13t"]
COUNT = 300
LEAST = 0.97
"""Minimum share of the leaked objects that must be definitely lost. Stale words may refer to the other ones."""
FREE_LIST = {"3.9": 80}
"""Number of entries of the free lists for lists and dictionaries. findleaks does not find these free lists in CPython 3.9. Their unused
entries still refer to objects that were taken from them."""
KINDS = ["list", "dict", "tuple", "str", "bytes", "set", "bytearray", "memoryview", "PyCapsule", "ValueError", "type", "module"]
PROGRAM = """
import gc, sys, time
from python_forget import forget
gc.collect()
gc.disable()
for kind in sys.argv[2:]:
    forget(kind, int(sys.argv[1]))
print("ready", flush=True)
time.sleep(3600)
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_each_type_is_counted(version: str, tmp_path: Path) -> None:
    python = other_pythons.PYTHONS[version]()
    (headers,) = Path("/usr/include").glob("python3.*/Python.h")
    mallocs_python.extension(truth.PROGRAMS / "python_forget.c", tmp_path / "modules", (f"-I{headers.parent}",))
    command = python.command("-c", PROGRAM, str(COUNT), *KINDS)
    with cores.Running(command, tmp_path, python.environment(tmp_path / "modules")) as run:
        found = json.loads(findleaks("find", "--json", str(run.gcore())))
    definite = {group["type"]: group["blocks"] for group in found["groups"] if group["kind"] == "definite"}
    assert definite.keys() <= {*KINDS}
    for kind in KINDS:
        assert LEAST * COUNT - FREE_LIST.get(version, 0) <= definite.get(kind, 0) <= COUNT, (kind, definite)
    excess = {one["name"]: one["excess"] for one in found["reference_counts"]["types"]}
    assert all(excess[kind] >= definite[kind] for kind in KINDS), excess


def test_blocks_that_look_like_the_arenas_of_the_parser(tmp_path: Path) -> None:
    """The words in the parser's arenas are not references. Those in similar blocks of a library are."""
    with cores.Running([sys.executable, str(truth.PROGRAMS / "foreign_arenas.py")], tmp_path) as run:
        found = json.loads(findleaks("find", "--json", str(run.gcore())))
    assert not [group for group in found["groups"] if group["kind"] == "definite" and group["size"] >= 5000], found["groups"]
