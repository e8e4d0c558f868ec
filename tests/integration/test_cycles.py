"""Lost cycles of a C++ program: `find` has one group for each leak, whatever the order of allocation."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import debuggers
import pytest
import truth

import cores

KINDS = ("definite", "indirect")


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, int]:
    """Return a core of the program, the lost cycles of each kind, and the size of the objects."""
    folder = tmp_path_factory.mktemp("cycles")
    subprocess.run(["g++", "-O1", "-Wall", "-Werror", "-o", folder / "cycles", truth.PROGRAMS / "cycles.cpp"], check=True)
    with cores.Running([str(folder / "cycles")], folder) as one:
        lost, size = map(int, one.output.split()[:2])
        return one.gcore(), lost, size


def run_json(core: Path, *words: str, **environment: str) -> Any:
    return json.loads(debuggers.findleaks(*words, "--json", str(core), **environment))


def test_each_leak_is_one_group(core: tuple[Path, int, int]) -> None:
    """The leak head is an object with a class rather than a plain block, then the largest block, then the one with the lowest vtable. The
    numbers of lost bytes equal those that Valgrind's memcheck reports."""
    path, lost, size = core
    found = run_json(path, "find")
    groups = [group for group in found["groups"] if group["kind"] == "definite"]
    named = sorted((group["type"] or "", group["size"], group["cycle"], group["blocks"]) for group in groups)
    (objects,) = (name for name, _, _, _ in named if name.endswith("Alpha"))
    (owner,) = {name for name, _, _, _ in named} - {"", objects}
    assert owner.endswith("Beta")
    assert named == [("", 120, 3, lost), (objects, size, 3, lost), (owner, size, 3, lost)]
    assert [group["indirect_blocks"] for group in groups] == [2 * lost] * 3
    totals = found["totals"]
    assert totals["definite"]["blocks"] == 3 * lost
    assert totals["definite"]["bytes"] == sum(group["bytes"] for group in groups)
    assert totals["indirect"]["blocks"] == 6 * lost
    assert totals["indirect"]["bytes"] == sum(group["indirect_bytes"] for group in groups)


def test_an_example_is_of_the_type_shown(core: tuple[Path, int, int]) -> None:
    path, _, _ = core
    for group in run_json(path, "find")["groups"]:
        for answer in run_json(path, "whatis", *group["examples"])["answers"]:
            assert (answer["block"]["type"], answer["block"]["size"]) == (group["type"], group["size"])
            assert answer["block"]["kind"] in KINDS


def test_python_reference_engine_agrees(core: tuple[Path, int, int]) -> None:
    path, _, _ = core
    assert run_json(path, "find", FINDLEAKS_PURE="1")["groups"] == run_json(path, "find")["groups"]
