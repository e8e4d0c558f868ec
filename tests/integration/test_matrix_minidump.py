"""Minidumps by other writers: Breakpad, Crashpad, and several versions of LLDB."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import building
import debuggers_matrix
import doors
import minidump_writers
import pytest
import truth
from debuggers import findleaks, objects, run_cli

from cores import Running

pytestmark = pytest.mark.matrix


def in_use(image: Path) -> dict[str, str]:
    return {block["address"]: block["kind"] for block in truth.ask(str(image))[0] if block["state"] == "in-use"}


def test_breakpads_of_the_truth_program(tmp_path: Path) -> None:
    """The dump has all writable memory. The results for the dump and the core differ only for blocks to which upper halves of vector
    registers refer."""
    program = building.compile_program(tmp_path, "truth.c", "-std=gnu11", "-g", "-O1", "-pthread")
    dumps = {"all": tmp_path / "all.dmp", "": tmp_path / "stacks.dmp"}
    with Running([str(program), "5", "12", "1"], tmp_path / "run") as run:
        for what, path in dumps.items():
            subprocess.run([minidump_writers.breakpad(), str(run.pid), path, *what.split()], check=True)
        records, core = truth.parse(run.output), run.kernel_core()
    of_core, of_dump = in_use(core), in_use(dumps["all"])
    other = {address for address in of_core if of_dump.get(address) != of_core[address]}
    assert of_dump.keys() == of_core.keys()
    assert other <= {hex(record.address) for record in records if record.category == "register"}
    stacks = [json.loads(run_cli("stacks", "--json", str(image), check=True).stdout) for image in (core, *dumps.values())]
    assert stacks[0]["stacks"] == [{**one, "names": stacks[0]["stacks"][0]["names"]} for one in stacks[1]["stacks"]]
    assert stacks[1]["stacks"] == stacks[2]["stacks"]
    assert "only `whatis` and `stacks`" in run_cli("find", str(dumps[""])).stderr


def test_crashpads(tmp_path: Path) -> None:
    """Crashpad's minidumps name libraries without folders, and have no list of mappings."""
    program = building.compile_program(tmp_path, "crashpad.c", "-std=gnu11", "-g", "-O1", "-pthread", name="crashing")
    database = tmp_path / "database"
    database.mkdir()
    done = subprocess.run([program, minidump_writers.crashpad(), database], capture_output=True, text=True, timeout=180)
    tid, block = done.stdout.split()
    assert done.returncode == 0, done.stderr
    (dump,) = database.glob("pending/*.dmp")
    body = json.loads(run_cli("stacks", "--json", str(dump), check=True).stdout)
    names = {stack["threads"][0]: [frame["function"] for frame in stack["frames"]] for stack in body["stacks"]}
    assert names.pop(int(tid)) == ["fault", "main", "__libc_start_call_main", "__libc_start_main", "_start"]
    assert [[name for name in found if name in ("other", "start_thread")] for found in names.values()] == [["other", "start_thread"]]
    assert all(stack["complete"] for stack in body["stacks"])
    (answer,) = json.loads(run_cli("whatis", "--json", block, str(dump), check=True).stdout)["answers"]
    assert answer["is"] == "unmapped"
    assert "only `whatis` and `stacks`" in run_cli("find", str(dump)).stderr


@pytest.mark.parametrize("name", ["lldb-14", "lldb-16"])
def test_lldbs_that_write_stacks_alone(tmp_path: Path, name: str) -> None:
    """These LLDBs do not support `--style full`."""
    lldb, dump = debuggers_matrix.get(name), tmp_path / "stack.dmp"
    with Running([str(doors.build(tmp_path))], tmp_path / "run") as run:
        reported = json.loads(run_cli("stacks", "--json", "--pid", str(run.pid), check=True).stdout)
        lldb.run([f"process save-core --style stack --plugin-name=minidump {dump}"], pid=run.pid)
    outside = json.loads(run_cli("stacks", "--json", str(dump), check=True).stdout)
    assert outside["threads"] == 2
    frames = [{one["threads"][0]: one["frames"] for one in body["stacks"]} for body in (outside, reported)]
    assert frames[0] == frames[1]
    assert "only `whatis` and `stacks`" in run_cli("find", str(dump)).stderr


@pytest.mark.parametrize("name", ["lldb-19", "lldb-23"])
def test_lldbs(tmp_path: Path, name: str) -> None:
    """findleaks reads minidumps of each LLDB, also loaded into that LLDB. LLDB 19 cannot open its own dumps of several threads."""
    lldb, dump = debuggers_matrix.get(name), tmp_path / "full.dmp"
    with Running([str(doors.build(tmp_path))], tmp_path / "run") as run:
        at = doors.parse_blocks(run.output)
        reported = objects(findleaks("blocks", "--json", "--pid", str(run.pid)))
        lldb.run([f"process save-core --style full --plugin-name=minidump {dump}"], pid=run.pid)
    kinds = {block["address"]: block["kind"] for block in map(json.loads, reported) if "address" in block}
    assert in_use(dump) == {**kinds, at["vector"]: "definite"}
    printed = lldb.run(["leaks blocks --json"], core=str(dump))
    inside = {block["address"]: block["kind"] for block in map(json.loads, objects(printed)) if "address" in block}
    assert inside == in_use(dump) or "error: Duplicate stream type" in printed
