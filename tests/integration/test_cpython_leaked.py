"""Every command shows the class of leaked Python objects. `find` has one group for each leak that the program made."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import debuggers
import mallocs_python
import pytest
import truth
from counts import until
from mallocs_python import SUITES

import cores

COUNT = 1000
LEAST = 0.9
"""Minimum share of the leaked objects that must be definitely lost. Stale words refer to the other objects."""

VERSIONS = [pytest.param(v, marks=() if v == "3.11" else pytest.mark.matrix) for v in SUITES]


class Leaked(NamedTuple):
    """Two cores of one process, and the addresses of some objects by class. The second core has twice as many leaked objects."""

    before: Path
    after: Path
    places: dict[str, list[str]]


@pytest.fixture(scope="module", params=VERSIONS)
def leaked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Leaked]:
    folder = tmp_path_factory.mktemp("leaked")
    python = mallocs_python.get(request.param)
    program = str(truth.PROGRAMS / "python_leaked.py")
    with cores.Running(python.command(program, str(COUNT)), folder, python.environment()) as one:
        places = {line.split()[0]: line.split()[1:] for line in one.output.splitlines()[:-1]}
        before = one.gcore().rename(folder / "before")
        os.kill(one.pid, signal.SIGUSR1)
        until(lambda: (folder / "stdout").read_text().endswith("more\n") and cores.all_sleep(one.pid), "the program to leak again")
        yield Leaked(before, one.gcore(), places)


def run_json(core: Path, *words: str, **environment: str) -> Any:
    return json.loads(debuggers.findleaks(*words, "--json", str(core), **environment))


def test_find_has_one_group_for_each_leak(leaked: Leaked) -> None:
    groups = [group for group in run_json(leaked.before, "find")["groups"] if group["kind"] == "definite" and group["blocks"] > COUNT / 20]
    assert sorted(group["type"] for group in groups) == sorted(leaked.places)
    for group in groups:
        assert group["runtime"] == "CPython"
        assert LEAST * COUNT <= group["blocks"] <= COUNT


def test_blocks_are_filtered_by_class(leaked: Leaked) -> None:
    lines = debuggers.findleaks("blocks", "--json", "--type", "__main__.*", str(leaked.before)).splitlines()
    rows = [row for row in map(json.loads, lines) if "address" in row]
    assert {row["type"] for row in rows} == {"__main__.Session", "__main__.Owner", "__main__.Part"}
    for name in ("__main__.Session", "__main__.Owner"):
        mine = [row for row in rows if row["type"] == name]
        assert len(mine) == COUNT
        assert sum(row["kind"] == "definite" for row in mine) >= LEAST * COUNT


def test_each_object_has_its_class(leaked: Leaked) -> None:
    for name, places in leaked.places.items():
        for answer in run_json(leaked.before, "whatis", *places)["answers"]:
            assert answer["block"]["type"] == name
            assert f"block, Python object: {name} at " in answer["text"]
    owner = leaked.places["__main__.Owner"][0]
    text = debuggers.findleaks("path", owner, str(leaked.before))
    assert "definite" in text
    assert "Python object: __main__.Owner" in text


def test_roots_lost_and_runtime(leaked: Leaked) -> None:
    text = debuggers.findleaks("roots", "--lost", "--limit", "30", "--depth", "1", str(leaked.before))
    heads = re.findall("(definite|possible): (.*) at 0x", text)
    assert len(heads) == 30
    rows = [name for kind, name in heads if kind == "definite"]
    assert len(rows) >= 20  # a stale word may refer to the inside of an object, which is then possibly lost
    # If it refers to an Owner, only the Parts of the Owner may be lost.
    assert sum(name in leaked.places for name in rows) >= LEAST * len(rows), rows
    (runtime,) = run_json(leaked.before, "runtime", "--limit", "0")["runtimes"]
    counts = {row["name"]: row["leaked"]["blocks"] for row in runtime["types"]}
    for name in ("__main__.Session", "__main__.Owner"):
        assert LEAST * COUNT <= counts[name] <= COUNT
    assert "LEAKED" in debuggers.findleaks("runtime", str(leaked.before))
    (quick,) = run_json(leaked.before, "runtime", "--no-native")["runtimes"]
    assert {row["leaked"] for row in quick["types"]} == {None}


def test_growth_has_one_row_for_each_class(leaked: Leaked) -> None:
    found = json.loads(debuggers.findleaks("diff", "--json", "--by", "lost", "--limit", "0", str(leaked.before), str(leaked.after)))
    grown = {row["name"]: row["within"] for row in found["grown"] if row["counts"] and row["counts"][-1] - row["counts"][0] > COUNT / 2}
    leaks, garbage = {"__main__.Session", "tuple"}, {"__main__.Owner", "list"}
    assert grown == {**dict.fromkeys(leaks, "definite"), **dict.fromkeys(garbage, "CPython")}


def test_garbage_that_grew_has_a_row_and_its_cause(leaked: Leaked) -> None:
    """The rows of leaks do not include the garbage."""
    cores = str(leaked.before), str(leaked.after)
    rows = json.loads(debuggers.findleaks("diff", "--json", "--limit", "0", *cores))["grown"]
    (row,) = (row for row in rows if row["what"] == "garbage")
    assert (row["name"], row["note"]) == ("CPython", "disabled")
    uncollected = run_json(leaked.before, "find")["reference_counts"]["uncollected"]["bytes"]
    assert 0.95 * uncollected <= row["bytes"][0] <= uncollected  # some leak heads have other classes
    assert {part["name"] for part in row["inside"]} == {"list", "__main__.Owner"}
    assert not {"list", "__main__.Owner"} & {row["name"] for row in rows if row["what"] == "lost"}
    text = " ".join(debuggers.findleaks("diff", *cores).split())
    assert "Garbage, not leaked, and growing (automatic collection is disabled)" in text


def test_the_signature_is_the_class(leaked: Leaked) -> None:
    lines = debuggers.findleaks("triage", "--json", str(leaked.before), str(leaked.after)).splitlines()
    (groups,) = (line["groups"] for line in map(json.loads, lines) if "groups" in line)
    both = {group["what"] for group in groups if group["cores"] == 2 and group["blocks"] > COUNT}
    assert set(leaked.places) <= {what.removeprefix("cycle of ").partition(" (")[0] for what in both}


LINES = ["find --json", "blocks --type *Owner --json", "runtime --json"]


def test_front_ends_agree(leaked: Leaked) -> None:
    core = str(leaked.before)
    shown = [line for words in LINES for line in debuggers.objects(debuggers.findleaks(*words.split(), core))]
    assert debuggers.objects(debuggers.gdb([f"leaks {words}" for words in LINES], "-c", core)) == shown
    assert debuggers.objects(debuggers.lldb([f"leaks {words}" for words in LINES], "-c", core)) == shown


@pytest.mark.matrix
def test_python_reference_engine_agrees(leaked: Leaked) -> None:
    core = str(leaked.before)
    found, *blocks, _ = (debuggers.objects(debuggers.findleaks(*words.split(), core)) for words in LINES)
    pure, *same, _ = (debuggers.objects(debuggers.findleaks(*words.split(), core, FINDLEAKS_PURE="1")) for words in LINES)
    assert same == blocks
    assert json.loads(pure[0])["groups"] == json.loads(found[0])["groups"]


def test_reference_counts_tell_leaks_from_garbage(leaked: Leaked) -> None:
    """A missing Py_DECREF leaves one reference too many; a cycle that waits for the collector has none."""
    found = run_json(leaked.before, "find")
    counts = found["reference_counts"]
    assert (counts["runtime"], counts["automatic_collection"]) == ("CPython", False)
    types = {one["name"]: one for one in counts["types"]}
    for name in ("__main__.Session", "tuple"):
        assert LEAST * COUNT <= types[name]["objects"] <= COUNT
        assert types[name]["excess"] == types[name]["objects"]
    for name in ("__main__.Owner", "list"):
        assert types[name]["objects"] == 0
        assert types[name]["uncollected"] >= LEAST * COUNT
    assert types["__main__.Session"]["uncollected"] <= (1 - LEAST) * COUNT  # a stale word in garbage may look like a reference to it
    sums = {name: counts[name]["bytes"] for name in ("missing_decrement", "uncollected")}
    every = found["totals"]["definite"]["bytes"] + found["totals"]["indirect"]["bytes"]
    assert sum(sums.values()) <= every
    findings = {one["finding"]: one for one in run_json(leaked.before, "verdict")["findings"]}
    assert findings["lost"]["bytes"] == every - sums["uncollected"]
    assert "a Py_DECREF is missing" in findings["lost"]["cause"]
    text = " ".join(debuggers.findleaks("find", str(leaked.before)).split())
    assert "a Py_DECREF is missing" in text
    assert "automatic collection is disabled" in text


@pytest.mark.matrix
def test_the_python_engine_compares_the_same_counts(leaked: Leaked) -> None:
    assert run_json(leaked.before, "find", FINDLEAKS_PURE="1")["reference_counts"] == run_json(leaked.before, "find")["reference_counts"]


def test_the_collectors_links_are_no_references(leaked: Leaked) -> None:
    places = leaked.places["__main__.Session"]
    answers = run_json(leaked.before, "whatis", *places)["answers"]
    # Stale words may refer to a few sessions, which are then not definitely lost.
    definite = [place for place, answer in zip(places, answers) if answer["block"]["kind"] == "definite"][:5]
    assert len(definite) == 5
    for place in definite:
        answer = run_json(leaked.before, "refs", place)
        assert [one for one in answer["references"] if one["live"] and one["value"] == place] == []
        steps = run_json(leaked.before, "path", place)["path"]
        assert [step for step in steps if step["in"]["block"]["kind"] not in ("definite", "indirect")] == []  # a stale word in another leak


DOCSTRINGS = """
import ctypes, os, signal, struct
class Lost:
    __slots__ = ("text",)
def make():
    lost = [Lost() for _ in range(500)]
    for one in lost:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
    # 128 bytes each. The last word is an address. Types reuse these blocks for docstrings of 117 bytes.
    addresses = [bytes(88) + struct.pack("<Q", id(one))[:7] for one in lost]
    del lost[:], one, addresses[:]
    return [type("T", (), {"__doc__": "d" * 116}) for _ in range(500)]
types = make()
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_words_after_docstrings_are_no_references(version: str, tmp_path: Path) -> None:
    python = mallocs_python.get(version)
    with cores.Running(python.command("-c", DOCSTRINGS), tmp_path, python.environment()) as run:
        found = json.loads(debuggers.findleaks("find", "--json", "--pid", str(run.pid)))
    lost = sum(group["blocks"] for group in found["groups"] if (group["kind"], group["type"]) == ("definite", "__main__.Lost"))
    assert LEAST * 500 <= lost <= 500
