"""GLib's slices, chunk by chunk: chunks that the program uses, lost and freed, and each byte has one owner."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import building
import glibs
import pytest
import truth
from debuggers import gdb, lldb, objects, run_cli, run_json

import cores

GLIB = "/usr/lib/x86_64-linux-gnu/libglib-2.0.so.0"

SLAB_STACK = 104  # offset of the pointer to the rings of slabs in GSlice's variables, x86-64


program = building.fixture("gslice.c", "-O1", "-pthread", GLIB)


@pytest.fixture(scope="module")
def running(program: Path) -> Iterator[cores.Running]:
    with cores.Running([str(program)], program.parent / "run") as made:
        yield made


def list_chunks(running: cores.Running) -> dict[int, tuple[str, int]]:
    """Return by address the last action of the program on the chunk, and its size. The address of a freed chunk may be used again."""
    rows = (line.split() for line in running.output.splitlines() if " 0x" in line)
    return {int(address, 16): (kind, int(size)) for kind, size, address in rows}


def test_chunks_of_a_live_process(running: cores.Running) -> None:
    check(running, ["--pid", str(running.pid)])


def test_chunks_in_a_core_by_gdb(running: cores.Running) -> None:
    check(running, [str(running.gcore())])


def test_chunks_in_a_core_by_the_kernel(program: Path) -> None:
    with cores.Running([str(program)], program.parent / "kernel") as made:
        check(made, [str(made.kernel_core())])


def check(running: cores.Running, where: list[str]) -> None:
    """Check the size, the state and the kind of each chunk."""
    blocks, _ = truth.ask(*where)
    by_address = {int(block["address"], 16): block for block in blocks}
    wanted = list_chunks(running)
    counted: Counter[tuple[str, str]] = Counter()
    for address, (kind, size) in wanted.items():
        block = by_address[address]
        assert block["size"] == max(16, -(-size // 16) * 16), (kind, hex(address))
        counted[kind, block.get("kind") if block["state"] == "in-use" else "free"] += 1
    assert set(counted) == {("held", "reachable"), ("lost", "definite"), ("freed", "free")}, counted


@pytest.mark.matrix
@pytest.mark.parametrize("version", glibs.VERSIONS)
def test_older_versions(version: str, program: Path, tmp_path: Path) -> None:
    """All versions have the same structures, so the chunks and totals of older versions are found, too."""
    with cores.Running([str(program)], tmp_path, glibs.environment(version)) as made:
        check(made, ["--pid", str(made.pid)])
        check(made, [str(made.gcore())])
        check_totals(made, version)


def test_totals_agree(running: cores.Running) -> None:
    check_totals(running, "2.74")


def check_totals(running: cores.Running, version: str) -> None:
    """Check that the chunks in use are those that the program did not free, and a few of GLib itself."""
    answer = run_json("find", "--pid", str(running.pid))
    (one,) = [each for each in answer["allocators"] if each["name"] == "GSlice"]
    assert one["version"].startswith(f"{version}.")
    assert answer["trusted"] and one["reconciled"]
    wanted = [size for kind, size in list_chunks(running).values() if kind != "freed"]
    assert len(wanted) <= one["blocks"] <= len(wanted) + 50
    shares = run_json("verdict", "--pid", str(running.pid))["shares"]
    assert {share["share"] for share in shares if (share["of"] or "").startswith("GSlice")} >= {"in-use", "metadata"}


@pytest.mark.parametrize("debugger", [gdb, lldb])
def test_debuggers(running: cores.Running, debugger: Any) -> None:
    (text,) = objects(debugger(["leaks find --json"], "-p", str(running.pid)))
    assert json.loads(text)["totals"] == run_json("find", "--pid", str(running.pid))["totals"]


def test_damaged_slabs(running: cores.Running, tmp_path: Path) -> None:
    """A damaged ring of slabs is reported, and the rest of the heap is read."""
    data = bytearray(running.gcore().read_bytes())
    at = data.find((128).to_bytes(8, "little") + (8192).to_bytes(8, "little"))  # GSlice's variables
    assert at > 0
    stack = int.from_bytes(data[at + SLAB_STACK : at + SLAB_STACK + 8], "little")
    data[at + SLAB_STACK : at + SLAB_STACK + 8] = (stack + 8).to_bytes(8, "little")  # each ring has slabs of another size
    core = tmp_path / "damaged.core"
    core.write_bytes(data)
    done = run_cli("find", "--json", str(core))
    body = json.loads(done.stdout)
    assert not body["trusted"]
    assert any("GSlice's ring of slabs for" in warning for warning in body["warnings"])
    assert body["totals"]["in_use"]["blocks"] > 0
