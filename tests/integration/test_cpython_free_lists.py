"""Objects in CPython's free lists are not scanned: leaked objects to which only free lists refer are reported as lost."""

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
"""Minimum share of the leaked objects that must be definitely lost. One third of the objects that refer to them were tuples, lists or
dictionaries of one size."""

INCREMENTAL = "3.14.3"
VERSIONS = [pytest.param(v, marks=() if v == "3.11" else pytest.mark.matrix) for v in (*SUITES, INCREMENTAL)]


@pytest.mark.parametrize("version", VERSIONS)
def test_former_contents_are_no_references(version: str, tmp_path: Path) -> None:
    python = other_pythons.incremental() if version == INCREMENTAL else mallocs_python.get(version)
    program = str(truth.PROGRAMS / "python_free_lists.py")
    with cores.Running(python.command(program, str(COUNT)), tmp_path, python.environment()) as one:
        found = json.loads(debuggers.findleaks("find", "--json", str(one.gcore())))
    groups = {(group["kind"], group["type"]): group["blocks"] for group in found["groups"]}
    assert LEAST * COUNT <= groups["definite", "__main__.Session"] <= COUNT
    (counts,) = (one for one in found["reference_counts"]["types"] if one["name"] == "__main__.Session")
    assert counts["objects"] == counts["excess"] == groups["definite", "__main__.Session"]


UNUSED = """
import ctypes, gc, signal
increment = ctypes.pythonapi.Py_IncRef
increment.argtypes, increment.restype = [ctypes.py_object], None
gc.disable()
waste = [kind() for kind in (list, dict) for _ in range(200)]
del waste
for number in range(COUNT):
    increment([number])
    increment({"number": number})
print("ready", flush=True)
signal.pause()
"""
"""Leaks lists and dictionaries. Some of them were taken from free lists."""


@pytest.mark.parametrize("version", ["3.11", pytest.param("3.13", marks=pytest.mark.matrix)])
def test_unused_entries_of_free_lists_are_no_references(version: str, tmp_path: Path) -> None:
    """A free list has 80 entries, and keeps the address in an entry after the object is used again. It holds the addresses of a fifth of
    the leaked objects. Stale words elsewhere may refer to a few more."""
    python, many = mallocs_python.get(version), 400
    with cores.Running(python.command("-c", UNUSED.replace("COUNT", str(many))), tmp_path, python.environment()) as one:
        found = json.loads(debuggers.findleaks("find", "--json", str(one.gcore())))
    groups = {group["type"]: group["blocks"] for group in found["groups"] if group["kind"] == "definite"}
    for name in ("list", "dict"):
        assert 0.9 * many <= groups[name] <= many


POPPED = """
import ctypes, gc, signal
increment = ctypes.pythonapi.Py_IncRef
increment.argtypes, increment.restype = [ctypes.py_object], None
gc.disable()
class Session: pass
def leaked():
    made = Session()
    increment(made)
    return made
kept = [[leaked() for _ in range(size)] for size in SIZES]
for each in kept:
    for _ in range(len(each) * 2 // 5):
        each.pop()
print(sum(map(len, kept)), flush=True)
print("ready", flush=True)
signal.pause()
"""
SIZES = [10] * 40 + [100] * 4 + [1000]
"""Lists that lose two fifths of their items, and keep their storage."""


@pytest.mark.parametrize("version", VERSIONS)
def test_unused_slots_of_lists_are_no_references(version: str, tmp_path: Path) -> None:
    """In links of the incremental collector, one bit marks young objects. These links are not references."""
    python = other_pythons.incremental() if version == INCREMENTAL else mallocs_python.get(version)
    with cores.Running(python.command("-c", POPPED.replace("SIZES", str(SIZES))), tmp_path, python.environment()) as one:
        held = int(one.output.split()[0])
        found = json.loads(debuggers.findleaks("find", "--json", str(one.gcore())))
    lost = sum(SIZES) - held
    groups = {group["kind"]: group["blocks"] for group in found["groups"] if group["type"] == "__main__.Session"}
    assert LEAST * lost <= groups["definite"] <= lost
