"""Words in slots of containers after the length are not references. If memory only looks like a container, its words are references."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
import truth
from debuggers import run_cli

import cores

LOST = {"definite", "indirect"}


class Parked(NamedTuple):
    """What the program printed of its blocks, its core, and its executable file."""

    blocks: dict[str, str]  # address -> "lost" or "held"
    core: Path
    program: Path


@pytest.fixture(scope="module")
def parked(tmp_path_factory: pytest.TempPathFactory) -> Parked:
    folder = tmp_path_factory.mktemp("stale")
    program = folder / "stale_slots"
    words = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-o", str(program), str(truth.PROGRAMS / "stale_slots.cpp")]
    subprocess.run(words, check=True)
    with cores.Running([str(program)], folder / "run") as running:
        rows = [line.split() for line in running.output.splitlines() if line != "ready"]
        core = running.gcore()
    return Parked({address: fate for fate, address in rows}, core, program)


def kinds(core: Path) -> dict[str, str]:
    """The kind of each block in use, by address."""
    lines = run_cli("blocks", "--json", "--limit", "0", str(core), check=True).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    return {row["address"]: row["kind"] for row in rows if "address" in row}


def test_stale_slots_are_no_references(parked: Parked) -> None:
    found = kinds(parked.core)
    assert sum(fate == "lost" for fate in parked.blocks.values()) == 90 + 100 + 19 + 60 + 42
    wrong = {address: (fate, found[address]) for address, fate in parked.blocks.items() if (found[address] in LOST) != (fate == "lost")}
    assert wrong == {}


def test_all_commands_agree(parked: Parked) -> None:
    """`refs` and `roots` use the same references as `find`."""
    lost = next(address for address, fate in parked.blocks.items() if fate == "lost")
    refs = json.loads(run_cli("refs", "--json", lost, str(parked.core), check=True).stdout)
    assert refs["live"] == 0
    assert [one["why"] for one in refs["references"]] == ["a slot beyond its container's length"]
    roots = json.loads(run_cli("roots", "--json", "--limit", "0", str(parked.core), check=True).stdout)["roots"]
    retained = {row["name"].split(" ")[0]: row["retained_blocks"] for row in roots if row["name"].startswith("g_")}
    expected = {"g_popped": 11, "g_server": 1, "g_cursor": 101, "g_same": 101, "g_list": 4 + 50, "g_array": 2 + 40, "g_numbers": 7 + 35}
    assert {name: retained[name] for name in expected} == expected


def test_vectors_need_debug_information(parked: Parked) -> None:
    """Three pointers alone may be a cursor instead of a container, so the words in their slots are references."""
    subprocess.run(["strip", "-g", str(parked.program)], check=True)
    found = kinds(parked.core)
    reachable = [address for address, fate in parked.blocks.items() if fate == "lost" and found[address] not in LOST]
    assert len(reachable) == 190
    assert not [address for address, fate in parked.blocks.items() if fate == "held" and found[address] in LOST]
