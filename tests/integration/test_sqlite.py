"""Slots of SQLite's lookaside buffers: findleaks finds as many in use as SQLite counts. Debian builds SQLite without these buffers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import building
import pytest
import sqlites
import truth
from debuggers import gdb, lldb, objects, run_cli

import cores
from findleaks.allocators.sqlite.instance import LookasideBuffers
from findleaks.session import Session
from findleaks.target.core import open_core

pytestmark = pytest.mark.matrix
program = building.by(sqlites.program)
running = building.running()


def check(output: str, where: list[str]) -> None:
    """Check that each connection has as many slots in use as it counts, that no block is lost, and that each statement is a block in
    use."""
    blocks, warnings = truth.ask(*where)
    assert not [warning for warning in warnings if "SQLite" in warning]
    assert not [block for block in blocks if block.get("kind") in (*truth.LOST, "possible")]
    counted = dict(re.findall(r"connection (0x\w+) (\d+)", output))
    assert len(counted) == 20 and sum(map(int, counted.values())) > 1000
    slots = [block for block in blocks if block["allocator"] == "sqlite-lookaside"]
    used = dict.fromkeys(counted, 0)
    for block in slots:
        used[block["arena"].split()[-1]] += block["state"] == "in-use"
    assert used == {connection: int(number) for connection, number in counted.items()}
    states = {block["address"]: block["state"] for block in slots}
    inside = [states[address] for address in re.findall(r"statement (0x\w+)", output) if address in states]
    assert len(inside) > 100 and set(inside) == {"in-use"}


def test_slots_of_a_live_process(running: cores.Running) -> None:
    where = ["--pid", str(running.pid)]
    check(running.output, where)
    assert run_cli("verify", *where).returncode == 0
    arenas = json.loads(run_cli("caches", "--json", "--allocator", "sqlite-lookaside", *where).stdout)["arenas"]
    own = {row["name"].split()[-1]: row["own"]["LOOKASIDE_USED"] for row in arenas}
    assert own == {connection: int(used) for connection, used in re.findall(r"connection (0x\w+) (\d+)", running.output)}


def test_slots_in_cores(running: cores.Running, program: Path) -> None:
    check(running.output, [str(running.gcore())])
    with cores.Running([str(program)], program.parent / "kernel") as made:
        check(made.output, [str(made.kernel_core())])


@pytest.mark.parametrize("debugger", [gdb, lldb])
def test_debuggers(running: cores.Running, debugger: Any) -> None:
    (text,) = objects(debugger(["leaks find --json"], "-p", str(running.pid)))
    assert json.loads(text)["totals"] == json.loads(run_cli("find", "--json", "--pid", str(running.pid)).stdout)["totals"]


def test_damage(running: cores.Running, tmp_path: Path) -> None:
    """If a list of free slots points to another place, this is reported."""
    core = running.gcore()
    session = Session(open_core(str(core)))
    (buffers,) = [one for one in session.directory.allocators if isinstance(one, LookasideBuffers)]
    free = next(head for one in buffers.buffers for head in one.heads if head)
    data = bytearray(core.read_bytes())
    place = data.find(session.target.read(free & -4096, 4096)) + free % 4096
    session.close()
    data[place : place + 8] = (free + 4).to_bytes(8, "little")
    core = tmp_path / "damaged.core"
    core.write_bytes(data)
    answer = json.loads(run_cli("find", "--json", str(core)).stdout)
    assert any(f"leads to {free + 4:#x}, which is not a free slot" in warning for warning in answer["warnings"])
    assert run_cli("verify", str(core)).returncode == 1
