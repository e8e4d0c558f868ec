"""`roots` shows where the memory is if one node of a small container retains nearly all of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import building
import pytest
from debuggers import run_cli

import cores

program = building.fixture("heavy_nodes.cpp", "-O2", "-s", name="stripped")
with_symbols = building.fixture("heavy_nodes.cpp", "-O2", "-g")


@pytest.mark.parametrize("kind", ["stripped", pytest.param("with_symbols", marks=pytest.mark.matrix)])
def test_one_node_retains_nearly_all(kind: str, program: Path, with_symbols: Path, tmp_path: Path) -> None:
    with cores.Running([str(program if kind == "stripped" else with_symbols)], tmp_path) as running:
        body = json.loads(run_cli("roots", "--json", "--pid", str(running.pid)).stdout)
    rows = {one["children"][0]["retained_blocks"] if one["children"] else one["retained_blocks"]: one for one in body["roots"]}
    registry, handlers, wheel = rows[1 + 3000], rows[1 + 4000], rows[1 + 6400]
    assert "linked list, 4 nodes of 40 B" in registry["what"]
    assert "array of pointers, 3,000 pointers and 3,000 blocks of 200 B" in registry["children"][0]["what"]
    assert re.search("std::map.*, 5 nodes of 88 B", handlers["what"])
    assert "4,000 pointers and 4,000 blocks of 120" in handlers["children"][0]["what"]
    assert wheel["what"] == "array of circular lists, 6,400 nodes of 72 B"
    if kind == "with_symbols":
        assert [one["name"].split(" ")[0] for one in (registry, handlers, wheel)] == ["registry", "handlers[abi:cxx11]", "wheel"]
        assert registry["children"][0]["name"] == "plugin.instances"
