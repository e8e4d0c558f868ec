"""Minidumps that LLDB writes of real processes, compared with the kernel's core of the same process. The process does not run between the
minidump and the core."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import building
import doors
import pytest
import truth
from debuggers import ROOT, gdb, lldb, objects, run_cli

from cores import Running

KINDS = ("full", "modified-memory", "stack")
CORES = ROOT / "cores"


@dataclass(frozen=True)
class Pictures:
    """One process: what it printed of its blocks, its minidumps by kind, its core, and its program."""

    records: list[truth.Record]
    dumps: dict[str, Path]
    core: Path
    program: Path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Pictures:
    folder = tmp_path_factory.mktemp("minidumps")
    program = building.compile_program(folder, "truth.c", "-std=gnu11", "-g", "-O1", "-pthread")
    dumps = {kind: folder / f"{kind}.dmp" for kind in KINDS}
    with Running([str(program), "5", "11", "1"], folder / "run") as run:
        lldb([f"process save-core --style {kind} --plugin-name=minidump {path}" for kind, path in dumps.items()], "-p", str(run.pid))
        return Pictures(truth.parse(run.output), dumps, run.kernel_core(), program)


def blocks(image: Path) -> dict[str, dict[str, Any]]:
    return {block["address"]: block for block in truth.ask(str(image))[0]}


@pytest.fixture(scope="module")
def of_core(pictures: Pictures) -> dict[str, dict[str, Any]]:
    return blocks(pictures.core)


@pytest.mark.parametrize("kind", ["full", "modified-memory"])
def test_blocks_are_those_of_the_core(pictures: Pictures, of_core: dict[str, dict[str, Any]], kind: str) -> None:
    """The minidump and the core give the same blocks, except blocks to which only a vector register refers. LLDB does not write vector
    registers, so findleaks warns and does not trust the result."""
    found = blocks(pictures.dumps[kind])
    other = {address for address in of_core if found.get(address) != of_core[address]}
    held = {hex(record.address) for record in pictures.records if record.category == "register" and record.kind == "reachable"}
    assert found.keys() == of_core.keys()
    assert len(found) > 3000
    assert 0 < len(other) < len(held)
    assert other <= held
    assert {found[address]["kind"] for address in other} <= set(truth.LOST)
    assert truth.compare(pictures.records, of_core.values()).perfect
    body = json.loads(run_cli("find", "--json", str(pictures.dumps[kind]), check=True).stdout)
    assert body["warnings"] == ["the vector registers are unknown: blocks that only these registers refer to are reported as leaked"]
    assert body["trusted"] is False


@pytest.mark.parametrize("kind", KINDS)
def test_stacks_are_those_of_the_core(pictures: Pictures, kind: str) -> None:
    """findleaks unwinds stacks also if the dump contains only the stacks, because the call frame information is in the files of the
    program."""
    of_dump, of_core = (
        json.loads(run_cli("stacks", "--json", str(image), check=True).stdout) for image in (pictures.dumps[kind], pictures.core)
    )
    assert of_dump["threads"] == of_core["threads"] == 5
    assert of_dump["stacks"] == of_core["stacks"]
    assert of_dump["warnings"] == of_core["warnings"]


def test_dump_of_stacks_only(pictures: Pictures) -> None:
    dump, words = pictures.dumps["stack"], Counter(record.category for record in pictures.records)
    assert words["stack"]
    for command in ("find", "verdict", "blocks", "caches", "verify", "roots"):
        done = run_cli(command, str(dump))
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        assert "stack.dmp: the minidump has the threads' stacks and no other writable memory" in done.stderr
        assert "process save-core --style full --plugin-name=minidump" in done.stderr
    both = run_cli("diff", str(dump), str(pictures.core))
    assert (both.returncode, both.stdout, both.stderr.count("\n")) == (2, "", 1)
    assert "the minidump has the threads' stacks" in both.stderr
    block = next(record.address for record in pictures.records if record.category == "single")
    frame = json.loads(run_cli("stacks", "--json", str(dump), check=True).stdout)["stacks"][0]["frames"][0]["address"]
    body = json.loads(run_cli("whatis", "--json", frame, hex(block), str(dump), check=True).stdout)
    code, heap = body["answers"]
    assert code["is"] == "module"
    assert code["symbol"].startswith("hold")
    assert heap["is"] == "mapping"
    assert "only `whatis` and `stacks` work" in body["warnings"][0]
    assert len(body["warnings"]) == 1


@pytest.fixture(scope="module")
def breakpads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return Breakpad's minidump of all writable memory, from cores/."""
    path = tmp_path_factory.mktemp("breakpad") / "doors.dmp"
    path.write_bytes(gzip.decompress((CORES / "doors.dmp.gz").read_bytes()))
    return path


@pytest.fixture(scope="module")
def at() -> doors.Placed:
    """Return the addresses of the blocks in Breakpad's samples, as the process printed them."""
    return doors.parse_blocks("\n".join(line for line in (CORES / "README.md").read_text().splitlines() if " 0x" in line))


@pytest.mark.platform("x86-64", "minidumps")
def test_breakpads(breakpads: Path, at: doors.Placed) -> None:
    """A block to which only the upper half of a vector register refers is reachable, because Breakpad writes this half."""
    found = blocks(breakpads)
    assert {name: found[address]["kind"] for name, address in at.items() if name in doors.KINDS} == doors.KINDS
    body = json.loads(run_cli("find", "--json", str(breakpads), check=True).stdout)
    assert (body["totals"]["definite"]["blocks"], body["totals"]["indirect"]["blocks"]) == (2, 2)
    assert "the vector registers beyond 128 bits are unknown" in body["warnings"][-1]
    packed = json.loads(run_cli("find", "--json", str(CORES / "doors.dmp.gz"), check=True).stdout)
    assert {**packed, "warnings": body["warnings"]} == body


def test_the_stacks_of_breakpads(at: doors.Placed) -> None:
    dump = CORES / "doors_stacks.dmp.gz"
    body = json.loads(run_cli("stacks", "--json", str(dump), check=True).stdout)
    assert body["threads"] == 2
    assert [stack["names"][0] for stack in body["stacks"]] == ["doors"] * 2
    assert "doors_stacks.dmp.gz: the minidump has the threads' stacks" in run_cli("find", str(dump)).stderr
    (answer,) = json.loads(run_cli("whatis", "--json", at["first"], str(dump), check=True).stdout)["answers"]
    assert "[heap] mapping" in answer["text"]


def test_inside_lldb(breakpads: Path, at: doors.Placed) -> None:
    """Every command prints the same as the command line. Only the advice about missing files names commands of LLDB."""
    inside, outside = (
        [{**json.loads(line), "warnings": []} for line in lines]
        for lines in (objects(lldb(doors.inside(at), "-c", str(breakpads))), doors.on_core(at, breakpads))
    )
    assert inside == outside
    assert len(inside) > 30


def test_inside_gdb(breakpads: Path) -> None:
    """GDB cannot open minidumps. The message suggests a command that can be pasted."""
    paste = f"`shell findleaks find {breakpads}`, or in a shell `lldb -c {breakpads}`"
    for words in ([str(breakpads)], ["-c", str(breakpads)], [f"--core={breakpads}"]):
        assert gdb(["leaks find"], *words).splitlines()[-1] == f"leaks: {breakpads}: a minidump, which GDB cannot load: {paste}"
