"""References in objects that V8 has collected: the state of each block is correct, both of blocks that a Node program dropped and of
blocks that it keeps."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import debuggers
import nodes
import pytest
import truth
from nodespaces import FLAGS

import cores
import findleaks
from findleaks.audit.address_info import Describer
from findleaks.audit.references import find_references

COUNT = 400
MADE = {"kept": 3 * (2 * COUNT + COUNT // 10), "forgotten": 3 * 2 * COUNT}
LOST = 0.9
"""Minimum number of dropped blocks that must be lost. Stale words may be on the stack and in V8's own lists, which malloc allocates."""

VERSIONS = [nodes.NEWEST, *(pytest.param(version, marks=pytest.mark.matrix) for version in ("18.20.8", "20.20.0", "22.12.0"))]


def running(folder: Path, version: str) -> cores.Running:
    subprocess.run(["gcc", *FLAGS, "-o", folder / "addresses.node", truth.PROGRAMS / "node_addresses.c"], check=True)
    script = shutil.copy(truth.PROGRAMS / "node_addresses.js", folder)
    return cores.Running([nodes.get(version), "--expose-gc", str(script), str(COUNT)], folder)


def parse_kinds(output: str) -> dict[str, str]:
    """Return the word that the program printed for each block (such as "kept"), by address."""
    return {address: what for what, address in (line.split() for line in output.splitlines() if " " in line)}


def check_kinds(output: str, said: Mapping[str, str]) -> list[str]:
    """Check that every kept block is reachable, and that dropped blocks are lost except for a few. Return these few."""
    rows = map(json.loads, output.splitlines())
    found = {row["address"]: row["kind"] for row in rows if "address" in row}
    assert Counter(said.values()) == MADE
    assert {found[address] for address, what in said.items() if what == "kept"} == {"reachable"}
    lost = [address for address, what in said.items() if what == "forgotten" and found[address] != "reachable"]
    assert len(lost) >= LOST * MADE["forgotten"]
    return lost


@pytest.mark.parametrize("version", VERSIONS)
def test_dropped_blocks_are_lost_and_kept_blocks_are_reachable(tmp_path: Path, version: str) -> None:
    """Externals, BigInts and typed arrays, in young and in old objects."""
    with running(tmp_path, version) as program:
        said, core = parse_kinds(program.output), str(program.kernel_core())
    lost = check_kinds(debuggers.findleaks("blocks", "--json", core), said)
    values = {int(address, 16) for address in lost}
    with findleaks.open(core) as process:
        describer = Describer(process._session)
        found = find_references(process._session, min(values), max(values) + 1)
        in_memory = [one for one in found if one.value in values and one.address]
        places = [(describer.answer(one.address).result().text, one.live) for one in in_memory]
    in_heap = [(place, live) for place, live in places if "; V8's heap" in place]
    assert not any(live for _, live in in_heap)
    # Most references are in memory that V8 has freed, but not yet used again.
    assert any("; V8's heap, a chunk " in place and place.endswith(", unused part without objects") for place, _ in in_heap)


@pytest.mark.matrix
def test_live_and_in_gdb(tmp_path: Path) -> None:
    """A live process gives the same states, and GDB agrees on a core. test_disassembly.py tests LLDB."""
    with running(tmp_path, nodes.NEWEST) as program:
        check_kinds(debuggers.findleaks("blocks", "--json", "--pid", str(program.pid)), parse_kinds(program.output))
        core = str(program.kernel_core())
    reported = json.loads(debuggers.findleaks("find", "--json", core))["totals"]
    printed = debuggers.gdb(["leaks find --json"], nodes.get(nodes.NEWEST), core)
    assert json.loads(debuggers.objects(printed)[0])["totals"] == reported
