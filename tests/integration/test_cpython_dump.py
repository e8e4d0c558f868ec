"""`runtime -o FILE.ndjson` writes the objects of a Python program, with the references that the collector traverses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import debuggers
import pytest
import truth
from other_pythons import PYTHONS
from variants import mark_matrix_except

import cores

PROGRAM = truth.PROGRAMS / "python_objects.py"
Line = dict[str, Any]


def dump(file: Path, *where: str) -> dict[int, Line]:
    """Return the lines that findleaks writes, by address."""
    text = debuggers.findleaks("runtime", "--only", "cpython", "-o", str(file), *where)
    assert "one object per line, for DuckDB, pandas and jq" in text
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    found = {int(one["address"], 16): one for one in lines}
    assert len(found) == len(lines)
    return found


def check_objects(truths: list[Line], found: dict[int, Line], has_names: bool) -> None:
    for one in truths:
        line = found[one["address"]]
        assert line["type"].rpartition(".")[2] == one["type"].rpartition(".")[2]
        assert line["module"] == (one["type"].rpartition(".")[0] or "builtins")
        references = {int(each["to"], 16) for each in line["references"]}
        # Static data of the interpreter is in no block, so the file has no lines for it.
        assert references - {int(line["address"], 16)} >= set(one["referents"]) & found.keys() - {one["address"]}, one["name"]
        # The collector does not traverse some references to strings and types.
        further = {found[each]["type"] for each in references - set(one["referents"])}
        assert further <= {"str", "type", "dict", "tuple", "code", "int", "functools._PlaceholderType"}, (one["name"], further)
        if has_names:
            names = {(each["name"], int(each["to"], 16)) for each in line["references"] if "name" in each}
            assert names >= set(one["names"].items()), one["name"]


@pytest.mark.parametrize("picture", mark_matrix_except(["live", "kernel", "gcore"], "kernel"))
@pytest.mark.parametrize("version", mark_matrix_except(PYTHONS.keys(), "3.11"))
def test_objects_and_references(version: str, picture: str, tmp_path: Path) -> None:
    python = PYTHONS[version]()
    with cores.Running(python.command(str(PROGRAM)), tmp_path, python.environment()) as one:
        truths = json.loads(one.output.splitlines()[0])
        where = ("--pid", str(one.pid)) if picture == "live" else (str(one.kernel_core() if picture == "kernel" else one.gcore()),)
        found = dump(tmp_path / "heap.ndjson", *where)
    assert len(found) > 3000 and len(truths) > 20
    check_objects(truths, found, version != "3.13t")
