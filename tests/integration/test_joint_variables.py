"""C and C++ variables that together retain one structure are one root. If each variable alone retains most of its memory, they are
separate roots."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import truth
from debuggers import run_cli

import cores

COUNT = 9_000  # joint_variables.cpp
TABLES = "conn_list, conns_by_name and conns_by_id", "conns_by_id, conns_by_name and conn_list"
MAPS = tuple(f"people: {first} and {second}" for first, second in (("by_name[abi:cxx11]", "by_id"), ("by_id", "by_name[abi:cxx11]")))
Make = Callable[..., str]


@pytest.fixture(name="make", scope="module")
def _make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    def make(modes: str, *options: str) -> str:
        """Return the core of the program with these structures."""
        folder = tmp_path_factory.mktemp("joint")
        source, program = truth.PROGRAMS / "joint_variables.cpp", folder / "joint"
        subprocess.run(["g++", "-O1", "-Wall", "-Wextra", "-Werror", *options, str(source), "-o", str(program)], check=True)
        with cores.Running([str(program), modes], folder / "run") as running:
            return str(running.gcore())

    return make


def roots(*words: str) -> list[dict[str, Any]]:
    return list(json.loads(run_cli("roots", "--json", *words, check=True).stdout)["roots"])


def test_tables_and_maps(make: Make) -> None:
    """Two sets: three variables of a C program, and two C++ containers. Each root has the name of its variables, is found by each of
    them, and has their fields. `verdict` names the larger set."""
    core = make("tm", "-g")
    maps, tables = (next(one for one in roots(core) if one["name"].removesuffix(" (joint, data)") in names) for names in (MAPS, TABLES))
    assert maps["retained_blocks"] == 6 * COUNT + 1 and tables["retained_blocks"] == 2 * COUNT + 3
    for root, names in ((maps, ("people::by_id",)), (tables, ("conns_by_id", "conns_by_name", "conn_list"))):
        for name in names:
            assert [one["name"] for one in roots(name, core)] == [root["name"]]
    assert {one["name"] for one in maps["children"]} == {"people::by_id", "people::by_name[abi:cxx11]"}
    assert {one["name"] for one in tables["children"]} == {"conns_by_id", "conns_by_name", "conn_list"}
    (users,), (conns,) = maps["shared_children"], tables["shared_children"]
    assert users["name"] == f"{COUNT:,} of std::make_shared<people::User>"
    assert (conns["name"], conns["retained_blocks"]) == (f"{COUNT:,} of conn", 2 * COUNT)
    (held,) = (one for one in json.loads(run_cli("verdict", "--json", core, check=True).stdout)["findings"] if one["finding"] == "held")
    assert "together retain" in held["text"] and any(name in held["text"] for name in MAPS)
    assert "is reached through both people::" in held["cause"]


def test_variables_without_symbols(make: Make) -> None:
    """The names are offsets in the file. No chain is reported as damaged, although the links of the other table point to nodes."""
    core = make("t", "-s")
    (tables,) = (one for one in roots(core) if " and " in one["name"])
    assert sorted(tables["name"].split(" and ")) == sorted(one["name"] for one in tables["children"])
    assert sorted(one["what"] for one in tables["children"]) == [
        f"array of pointers, {COUNT:,} pointers",
        *(f"hash table, {COUNT:,} nodes of 72 B" for _ in range(2)),
    ]


def test_variables_that_retain_most_alone(make: Make) -> None:
    core = make("o")
    assert {"first_own (joint, data)", "second_own (joint, data)"} <= {one["name"] for one in roots(core)}


@pytest.mark.parametrize(
    ("mode", "names"), [("l", {"jobs"}), ("a", {"jobs", "newest", "job_slots"}), ("h", {"jobs", "newest", "job_table"})]
)
def test_a_list_whose_nodes_are_in_an_array(mode: str, names: set[str], make: Make) -> None:
    """A single pointer to a node is stale, so the list alone retains its nodes. If an array has pointers to the nodes, the array retains
    them, too."""
    (found,) = (one for one in roots(make(mode)) if one["retained_blocks"] >= 2 * COUNT)
    assert set(found["name"].removesuffix(" (joint, data)").replace(" and ", ", ").split(", ")) == names
