"""The types of Go objects to which only variables, stacks and closures refer, in stripped programs: their numbers are exact."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from debuggers import runtime_page
from go_programs import STRIPPED, VERSIONS, build

from cores import Running

COUNT = 200
WANTED = {
    "main.Item": 2 * COUNT + 12 + 5,
    "main.Order": 3 * COUNT,
    "main.Job": COUNT,
    "main.Cache": 1,
    "main.Square": 1,
    "map[string]*main.Item": 2,
    "map[int]struct {}": 1,
    "[]*main.Item": 1,
    "func main.task.func1": COUNT,
}

_WITHOUT_CAPSTONE = "import sys; sys.modules['capstone'] = None; from findleaks.cli import main; sys.exit(main(sys.argv[1:]))"
ABSENT = {"main.Circle", "main.Triangle"}  # Code stores such objects, but no live variable refers to one.


@pytest.mark.platform("x86-64", "Go")
@pytest.mark.parametrize("version", ["", *(pytest.param(one, marks=pytest.mark.matrix) for one in VERSIONS)])
def test_types_that_code_proves(version: str, tmp_path: Path) -> None:
    program = build(tmp_path, version, STRIPPED, name="go_typed")
    with Running([str(program), str(COUNT)], tmp_path / "run") as run:
        page = runtime_page("go", "--pid", str(run.pid))
        hidden = [sys.executable, "-c", _WITHOUT_CAPSTONE, "runtime", "--only", "go", "--pid", str(run.pid)]
        without = "" if version else subprocess.run(hidden, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True).stdout
    assert count_objects(page) == WANTED
    told = " ".join(without.split())  # warnings are wrapped
    assert told.count("variables, stacks and closures refer are unknown: Python's capstone 5 is missing") == (not version)


def count_objects(page: dict[str, list[dict[str, int]]]) -> dict[str, int]:
    """Return the numbers of live objects of the types of the program."""
    found = {str(one["name"]): one["objects"] for one in page["types"]}
    return {name: count for name, count in found.items() if name in WANTED or name in ABSENT}


@pytest.mark.platform("x86-64", "Go")
@pytest.mark.parametrize("version", ["", *(pytest.param(one, marks=pytest.mark.matrix) for one in VERSIONS)])
def test_trees_that_only_variables_refer_to(version: str, tmp_path: Path) -> None:
    """Functions store the objects where arguments point, or return them. If a function stores objects of two types, they have no type;
    nor has the object to which the value of an interface refers."""
    program = build(tmp_path, version, STRIPPED, name="go_trees")
    with Running([str(program), "2000"], tmp_path / "run") as run:
        printed = dict(line.split() for line in run.output.splitlines() if line.startswith("main."))
        page = runtime_page("go", "--pid", str(run.pid))
    found = {str(one["name"]): str(one["objects"]) for one in page["types"] if one["objects"]}
    assert len(printed) == 9
    assert {name: count for name, count in found.items() if name.startswith("main.")} == printed
