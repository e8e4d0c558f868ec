"""Pool resources of std::pmr, block by block: blocks that the program uses, lost and freed, and the resource of each block."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import building
import pytest
import truth
from debuggers import gdb, lldb, objects, run_cli
from variants import mark_matrix_except

import cores
from findleaks.allocators.pmr.instance import PoolResources
from findleaks.session import Session
from findleaks.target.core import open_core

program = building.fixture("pmr_pools.cpp", "-std=c++17", "-O1", "-pthread")
running = building.running()
POOLED = 4096  # bytes of the largest block of a pool
STALE = 3
"""Maximum number of lost blocks to which a stale word may refer. The last word of a block of malloc may be stale, because the pool
resource did not request it."""


def check(output: str, where: list[str]) -> None:
    """Check the size, the state and the kind of each block. Blocks that belong to no pool are blocks of malloc."""
    by_address = {int(block["address"], 16): block for block in truth.ask(*where)[0]}
    counted: Counter[tuple[str, bool, str]] = Counter()
    wanted = [line.split() for line in output.splitlines() if " 0x" in line]
    for kind, size, address in wanted:
        block, pooled = by_address.get(int(address, 16)), int(size) <= POOLED
        if kind == "freed" and (block is None or block["allocator"] != "std::pmr"):
            continue  # a large block that was freed, or a chunk without blocks in use of an ended thread
        assert block is not None, (kind, address)
        if pooled:
            assert (block["allocator"], block["size"]) == ("std::pmr", int(size)), (kind, address)
        counted[kind, pooled, block["kind"] if block["state"] == "in-use" else "free"] += 1
    lost = {int(block["address"], 16) for block in by_address.values() if block.get("kind") in truth.LOST}
    truly = {int(address, 16) for kind, _, address in wanted if kind == "lost"}
    assert lost <= truly and len(truly - lost) <= STALE, truly - lost
    kinds = {("held", True, "reachable"), ("lost", True, "definite"), ("freed", True, "free")}
    assert kinds <= {key for key in counted if key[1]} <= {*kinds, ("lost", True, "reachable")}
    assert counted["freed", True, "free"] > 4000 < counted["held", True, "reachable"]
    assert counted["held", False, "reachable"] > 10 < counted["lost", False, "definite"]


def test_blocks_of_a_live_process(running: cores.Running) -> None:
    where = ["--pid", str(running.pid)]
    check(running.output, where)
    assert run_cli("verify", *where).returncode == 0
    answer = json.loads(run_cli("find", "--json", *where).stdout)
    (one,) = [each for each in answer["allocators"] if each["name"] == "std::pmr"]
    assert answer["trusted"] and one["resources"] == 2 and one["reconciled"]


def test_blocks_in_a_core_by_the_kernel(program: Path) -> None:
    with cores.Running([str(program)], program.parent / "kernel") as made:
        check(made.output, [str(made.kernel_core())])


@pytest.mark.matrix
def test_blocks_in_a_core_by_gdb(running: cores.Running) -> None:
    check(running.output, [str(running.gcore())])


@pytest.mark.parametrize("debugger", [gdb, pytest.param(lldb, marks=pytest.mark.matrix)])
def test_debuggers(running: cores.Running, debugger: Any) -> None:
    (text,) = objects(debugger(["leaks find --json"], "-p", str(running.pid)))
    assert json.loads(text)["totals"] == json.loads(run_cli("find", "--json", "--pid", str(running.pid)).stdout)["totals"]


def test_names_of_resources(running: cores.Running) -> None:
    """A resource has the name of its kind, with its variable or its address."""
    rows = json.loads(run_cli("caches", "--json", "--by-arena", "--allocator", "std::pmr", "--pid", str(running.pid)).stdout)["caches"]
    names = {row["arena"] for row in rows}
    assert "unsynchronized_pool_resource session_pool" in names and len(names) == 2
    assert any(name.startswith("synchronized_pool_resource 0x") for name in names)


upstream_program = building.fixture("pmr_upstream.cpp", "-std=c++17", "-O1")
UPSTREAMS = {"buffer": 0, "malloc": 1, "pool": 2, "pool_on_buffer": 3, "derived": 5}


@pytest.mark.parametrize("upstream", mark_matrix_except(UPSTREAMS, "malloc", "pool_on_buffer", "derived"))
def test_pools_in_other_resources(upstream: int, upstream_program: Path, tmp_path: Path) -> None:
    """Blocks of a pool resource in another resource. The objects of the upstream resource, which refer to some blocks, stay scanned.
    The pool resource may be of a derived class."""
    with cores.Running([str(upstream_program), str(upstream)], tmp_path) as running:
        by_address = {int(block["address"], 16): block for block in truth.ask("--pid", str(running.pid))[0]}
        answer = json.loads(run_cli("find", "--json", "--pid", str(running.pid)).stdout)
    assert answer["trusted"] and not answer["notes"]
    found: Counter[tuple[str, str]] = Counter()
    for kind, size, address in (line.split() for line in running.output.splitlines() if " 0x" in line):
        block = by_address.get(int(address, 16))
        if kind == "freed" and (int(size) > POOLED or block is None):
            continue  # a larger block was returned to the upstream resource
        assert block is not None and block["size"] >= int(size), (kind, address)
        found[kind, block["kind"] if block["state"] == "in-use" else "free"] += 1
        by_address.pop(int(address, 16))
    assert found.pop(("lost", "reachable"), 0) <= STALE
    assert set(found) == {("held", "reachable"), ("lost", "definite"), ("freed", "free")} and found["held", "reachable"] == 1000
    assert not [block for block in by_address.values() if block.get("kind") in truth.LOST]


def test_pools_in_a_resource_of_the_program(upstream_program: Path, tmp_path: Path) -> None:
    """A note has the size of chunks that are in a resource of unknown structure, because other objects may be beside them."""
    with cores.Running([str(upstream_program), "4"], tmp_path) as running:
        answer = json.loads(run_cli("find", "--json", "--pid", str(running.pid)).stdout)
    held = [re.match(r"findleaks does not divide (\d+) KiB of pool resources", one) for one in answer["notes"]]
    assert answer["trusted"] and not answer["groups"] and [one is not None and int(one[1]) >= 150 for one in held] == [True]


def test_leaked_contexts(tmp_path: Path) -> None:
    """What leaked with a monotonic resource is reported. Objects in a resource that is in use stay scanned, also if they look like records
    of larger blocks."""
    made = building.compile_program(tmp_path, "pmr_contexts.cpp", "-std=c++17", "-O1")
    with cores.Running([str(made)], tmp_path / "run") as running:
        blocks = truth.ask("--pid", str(running.pid))[0]
    kinds = {int(block["address"], 16): block.get("kind") for block in blocks}
    truly: dict[str, set[int]] = {"held": set(), "lost": set()}
    for kind, address in (line.split() for line in running.output.splitlines() if " 0x" in line):
        truly[kind].add(int(address, 16))
    lost = {address for address, kind in kinds.items() if kind in truth.LOST}
    # The first words of the chunks that are in use are objects, not blocks.
    assert len(truly["lost"]) > 500 < len(truly["held"]) and not lost - truly["lost"], lost - truly["lost"]
    assert len(truly["lost"] - lost) <= STALE, truly["lost"] - lost


def test_damage(running: cores.Running, tmp_path: Path) -> None:
    """An impossible record of a chunk is reported. The other chunks are read."""
    core = running.gcore()
    session = Session(open_core(str(core)))
    (pools,) = [one for one in session.directory.allocators if isinstance(one, PoolResources)]
    chunk, record = pools.resources[0].chunks[0], pools.resources[0].arrays[0]
    data = bytearray(core.read_bytes())
    place = data.find(session.target.read(record & -4096, 4096)) + record % 4096
    session.close()
    data[place : place + 8] = (chunk.start + 8).to_bytes(8, "little")
    core = tmp_path / "damaged.core"
    core.write_bytes(data)
    answer = json.loads(run_cli("find", "--json", str(core)).stdout)
    assert any(f"record at {record:#x} of a chunk of a pool resource is impossible" in warning for warning in answer["warnings"])
    assert answer["totals"]["in_use"]["blocks"] > 10_000 and run_cli("verify", str(core)).returncode == 1
