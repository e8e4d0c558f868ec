"""Leaks of released packages whose memory stays reachable: findleaks names what retains it in the bad release, and does not report it in
the fixed release."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from debuggers import findleaks, runtime_page
from published import KEPT, PROGRAMS, Kept, install, interpreter

from cores import Running

CONNECTIONS = 0.85
"""Minimum share of SQLite's memory that only sqlite3's objects retain. Stale pointers in reused memory refer to the rest."""


@contextmanager
def start_program(leak: Kept, version: str, folder: Path) -> Iterator[tuple[Running, dict[str, Any]]]:
    """Start the program with this release. Return the program and the number of objects that it prints. The tests compare the report with
    this number."""
    python, short = interpreter()
    path = [install(leak.project, version, short), *(install(*need, short) for need in leak.needs)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    with Running([python, "-S", str(PROGRAMS / leak.program), str(leak.times)], folder, environment) as running:
        said = json.loads(running.output.splitlines()[0])
        assert said["objects"] == (leak.bad_keeps if version == leak.bad else leak.fixed_keeps), (
            "the release leaks as described in the tracker"
        )
        yield running, said


def types(*words: str) -> list[dict[str, Any]]:
    """Return the types of CPython objects in the order of `runtime`: the type with most memory first."""
    page = runtime_page("cpython", *words)
    return list(page["types"])


def find_row(rows: list[dict[str, Any]], name: str) -> tuple[int, dict[str, Any]]:
    """Return the index of the row of this name, and the row."""
    (found,) = [(place, row) for place, row in enumerate(rows) if row["name"] == name]
    return found


def holders(address: str, core: str) -> list[dict[str, Any]]:
    """Return the references to this block from memory in use."""
    found = json.loads(findleaks("refs", "--json", address, core))["references"]
    return [row["from"] for row in found if row["live"] and "from" in row]


def test_patterns_that_babel_keeps_are_reported(tmp_path: Path) -> None:
    leak = KEPT["babel"]
    with start_program(leak, leak.bad, tmp_path) as (running, said):
        core = str(running.kernel_core())
    rows = types(core)
    place, row = find_row(rows, leak.type)
    # Strings are usually the most common objects. Here they belong to the patterns. No other type comes before them.
    assert (place, rows[0]["name"], row["objects"]) == (1, "str", said["objects"])
    # Each owns one block that is not an object: its table of attributes.
    assert 0.95 * said["objects"] < row["native_blocks"] <= said["objects"]
    assert json.loads(findleaks("find", "--json", core))["totals"]["definite"]["blocks"] == 0, (
        "there is no leak: all of the memory is reachable"
    )
    # The largest block is the table of a dictionary. The variable that refers to the dictionary has a name.
    tables = [json.loads(line) for line in findleaks("blocks", "--json", "--kind", "reachable", "--size", "300000-", core).splitlines()]
    # A stale word in another block may refer to the table, too.
    largest = max((one for one in tables if "size" in one), key=lambda one: one["size"])
    (dictionary,) = (one for one in holders(largest["address"], core) if "Python object: dict" in one["text"])
    assert any(
        one["text"].endswith("; Python variable: babel.dates._pattern_cache") for one in holders(dictionary["block"]["address"], core)
    )


@pytest.mark.matrix
def test_babel_with_a_limited_cache(tmp_path: Path) -> None:
    leak = KEPT["babel"]
    with start_program(leak, leak.fixed, tmp_path) as (running, said):
        place, row = find_row(types("--pid", str(running.pid)), leak.type)
    assert row["objects"] == said["objects"]
    assert place > 4, "the type is not among the largest"


@pytest.mark.parametrize("picture", ["kernel_core", pytest.param("live", marks=pytest.mark.matrix)])
def test_connections_that_sqlobject_keeps_are_reported(picture: str, tmp_path: Path) -> None:
    leak = KEPT["sqlobject"]
    with start_program(leak, leak.bad, tmp_path) as (running, said):
        where = ["--pid", str(running.pid)] if picture == "live" else [str(running.kernel_core())]
        rows, packages = types("--no-native", *where), types("--by", "package", *where)
    _, row = find_row(rows, leak.type)
    assert row["objects"] == said["objects"]
    # Statements also refer to a connection's memory: no type of statement retains this memory alone, but the package does. The package
    # comes first.
    place, package = find_row(packages, "sqlite3")
    assert place == 0
    assert package["objects"] == sum(row["objects"] for row in rows if row["name"].startswith("sqlite3."))
    assert CONNECTIONS * said["bytes"] <= package["native_bytes"] <= 1.1 * said["bytes"]


@pytest.mark.matrix
def test_sqlobject_that_closes_connections(tmp_path: Path) -> None:
    leak = KEPT["sqlobject"]
    with start_program(leak, leak.fixed, tmp_path) as (running, said):
        where = ["--pid", str(running.pid)]
        rows, packages = types("--no-native", *where), types("--by", "package", *where)
    assert find_row(rows, leak.type)[1]["objects"] == said["objects"]
    place, package = find_row(packages, "sqlite3")
    assert place > 4, "the type is not among the largest"
    # SQLite's cached pages contain stale words. One may refer to the syntax tree of the interpreter, or to objects that it refers to.
    assert package["native_bytes"] < 0.1 * leak.bad_keeps * said["bytes"]
