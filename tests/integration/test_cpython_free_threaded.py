"""Free-threaded CPython: leaked objects by class, reference counts and garbage of the collector agree with what the programs print."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import debuggers
import other_pythons
import pytest
import truth

import cores

pytestmark = pytest.mark.matrix

COUNT = 1000
LEAST = 0.85
"""Minimum share of the leaked objects that must be definitely lost. mimalloc rounds blocks up, and stale words after the objects refer
to some."""


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("modules")
    other_pythons.free_threaded().extension(truth.PROGRAMS / "python_increment.c", folder)
    return folder


def running(folder: Path, modules: Path, *words: str) -> cores.Running:
    python = other_pythons.free_threaded()
    return cores.Running(python.command(*words), folder, python.environment(modules))


def program(name: str) -> str:
    return str(truth.PROGRAMS / name)


def run_json(core: Path, *words: str, **environment: str) -> Any:
    return json.loads(debuggers.findleaks(*words, "--json", str(core), **environment))


class Leaked:
    """A core, and addresses of some leaked objects by class."""

    def __init__(self, core: Path, output: str) -> None:
        self.core = core
        self.places = {line.split()[0]: line.split()[1:] for line in output.splitlines()[:-1]}


@pytest.fixture(scope="module")
def leaked(tmp_path_factory: pytest.TempPathFactory, modules: Path) -> Iterator[Leaked]:
    with running(tmp_path_factory.mktemp("leaked"), modules, program("python_leaked.py"), str(COUNT)) as one:
        yield Leaked(one.gcore(), one.output)


def test_one_group_for_each_leak(leaked: Leaked) -> None:
    found = run_json(leaked.core, "find")
    groups = [group for group in found["groups"] if group["kind"] == "definite"]
    assert sorted(group["type"] for group in groups) == sorted(leaked.places)
    for group in groups:
        assert group["runtime"] == "CPython"
        assert LEAST * COUNT <= group["blocks"] <= COUNT
    assert found["trusted"] is True


def test_each_object_has_its_class(leaked: Leaked) -> None:
    for name, places in leaked.places.items():
        for answer in run_json(leaked.core, "whatis", *places)["answers"]:
            assert answer["block"]["type"] == name


def test_reference_counts_tell_leaks_from_garbage(leaked: Leaked) -> None:
    types = {one["name"]: one for one in run_json(leaked.core, "find")["reference_counts"]["types"]}
    for name in ("__main__.Session", "tuple"):
        assert LEAST * COUNT <= types[name]["objects"] <= COUNT
        assert types[name]["excess"] == types[name]["objects"]
    for name in ("__main__.Owner", "list"):
        assert types[name]["objects"] == 0
        assert types[name]["uncollected"] >= LEAST * COUNT


def test_every_front_end_and_engine_agree(leaked: Leaked) -> None:
    core = str(leaked.core)
    found = debuggers.objects(debuggers.findleaks("find", "--json", core))
    assert debuggers.objects(debuggers.gdb(["leaks find --json"], "-c", core)) == found
    assert debuggers.objects(debuggers.lldb(["leaks find --json"], "-c", core)) == found
    pure = run_json(leaked.core, "find", FINDLEAKS_PURE="1")
    assert (pure["groups"], pure["reference_counts"]) == (json.loads(found[0])["groups"], json.loads(found[0])["reference_counts"])


def test_objects_of_ended_and_waiting_threads(tmp_path: Path, modules: Path) -> None:
    """The first thread makes functions and types immortal, including dead ones. These are not reported as leaks."""
    with running(tmp_path, modules, program("python_threads_leak.py"), str(COUNT)) as one:
        truly = int(one.output.splitlines()[0])
        found = run_json(one.gcore(), "find")
    definite = {group["type"]: group["blocks"] for group in found["groups"] if group["kind"] == "definite"}
    assert list(definite) == ["__main__.Session"]
    assert LEAST * truly <= definite["__main__.Session"] <= truly


def test_free_lists_are_no_references(tmp_path: Path, modules: Path) -> None:
    with running(tmp_path, modules, program("python_free_lists.py"), str(2 * COUNT)) as one:
        found = run_json(one.gcore(), "find")
    lost = sum(found["totals"][kind]["blocks"] for kind in ("definite", "indirect"))
    assert LEAST * 2 * COUNT <= lost <= 2 * COUNT


IDLE = """
import collections, gc, logging, re, signal
class Tree:
    def __init__(self, depth):
        self.children = [Tree(depth - 1) for _ in range(3)] if depth else []
        self.names = {str(number): number for number in range(depth)}
kept = Tree(7)
Tree(6)
gc.collect()
print("ready", flush=True)
signal.pause()
"""


def test_a_healthy_process_has_no_finding(tmp_path: Path, modules: Path) -> None:
    with running(tmp_path, modules, "-c", IDLE) as one:
        core = one.gcore()
        assert run_json(core, "find")["groups"] == []
        assert [finding["finding"] for finding in run_json(core, "verdict")["findings"]] == ["nothing-lost"]
    assert run_json(core, "verify")["problems"] == []
