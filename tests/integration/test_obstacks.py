"""Obstacks: the words behind the objects of an obstack are not references, and chunks have the name of their obstack."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import building
import pytest
import truth
from debuggers import gdb, lldb, objects, run_cli, run_json

import cores
from findleaks.target.core import open_core

program = building.fixture("obstacks.c", "-O1")
running = building.running()
CONTEXTS, LOST, HELD = 50, 200, 1201


def check(output: str, *where: str) -> None:
    """Compare the kind of each block, and the bytes of the obstacks, with what the program printed."""
    blocks, warnings = truth.ask(*where)
    kinds = {int(block["address"], 16): block["kind"] for block in blocks if "kind" in block}
    truly = [(word, int(address, 16)) for word, address in re.findall(r"(held|lost) (0x\w+)", output)]
    assert Counter(word for word, _ in truly) == {"held": HELD, "lost": LOST} and not warnings
    wrong = [(word, hex(address)) for word, address in truly if kinds[address] != ("definite" if word == "lost" else "reachable")]
    assert not wrong and sum(kind in truth.LOST for kind in kinds.values()) == LOST
    assert not [block["address"] for block in blocks if block.get("type") == "obstack chunk"]
    answer = run_json("runtime", *where)
    (runtime,) = answer["runtimes"]
    assert not answer["warnings"]
    types = {row["name"]: row for row in runtime["types"]}
    wanted: dict[str, list[int]] = {}
    for name, chunks, _, free in re.findall(r"obstack (\w+) \w+ (\d+) (\d+) (\d+)", output):
        its = wanted.setdefault("obstack names" if name == "names" else "obstack", [0, 0, 0])
        its[:] = its[0] + 1, its[1] + int(chunks), its[2] + int(free)
    assert {name: row["objects"] for name, row in types.items()} == {name: its[0] for name, its in wanted.items()}
    assert runtime["counters"]["chunks"] == sum(its[1] for its in wanted.values())
    # malloc may round the size of a chunk up, by less than 64 bytes.
    for name, (_, chunks, free) in wanted.items():
        assert 0 <= types[name]["own"]["free"] - free < 64 * chunks, name


def test_a_live_process(running: cores.Running) -> None:
    assert "reused 1" in running.output
    check(running.output, "--pid", str(running.pid))


def test_a_core(program: Path, tmp_path: Path) -> None:
    """A core of a stripped program: the variable has no name."""
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", "-o", stripped, program], check=True)
    with cores.Running([str(stripped)], tmp_path / "run") as made:
        core = str(made.kernel_core())
        check(made.output.replace("obstack names", "obstack other"), core)


@pytest.mark.parametrize("debugger", [gdb, pytest.param(lldb, marks=pytest.mark.matrix)])
def test_debuggers(running: cores.Running, debugger: Any) -> None:
    core = str(running.gcore())
    commands = [f"leaks {word} --json" for word in ("runtime", "find")]
    runtime, found = map(json.loads, objects(debugger(commands, "-c", core)))
    assert runtime["runtimes"] == run_json("runtime", core)["runtimes"] and found["totals"] == run_json("find", core)["totals"]


def test_words_of_4_bytes(tmp_path: Path) -> None:
    """The last word of an unfinished object may have only one byte of it, so it is no reference."""
    built = tmp_path / "obstacks"
    subprocess.run(["i686-linux-gnu-gcc", "-O1", "-o", str(built), str(truth.PROGRAMS / "obstacks.c")], check=True)
    with cores.Running([str(built)], tmp_path / "run") as made:
        check(made.output, "--pid", str(made.pid))


def test_names(running: cores.Running) -> None:
    names = re.search(r"obstack names (0x\w+)", running.output)
    assert names is not None
    where = "--pid", str(running.pid)
    assert "obstack names at 0x" in run_cli("roots", *where).stdout
    chunk = next(block["address"] for block in truth.ask(*where)[0] if block.get("type") == "obstack names")
    assert "obstack names" in run_cli("whatis", chunk, *where).stdout


def test_a_large_obstack(tmp_path: Path) -> None:
    """`verdict` names the obstack that has most of the memory. Dropped obstacks are leaks with the name of a chunk."""
    made = building.compile_program(tmp_path, "obstacks.c", "-O1")
    with cores.Running([str(made), "large"], tmp_path / "run") as running:
        where = "--pid", str(running.pid)
        findings = {one["finding"]: one for one in run_json("verdict", *where)["findings"]}
        groups = run_json("find", *where)["groups"]
    assert "the obstack names has" in findings["obstack"]["text"]
    assert [(one["type"], one["blocks"], one["indirect_blocks"]) for one in groups if one["type"]] == [("obstack chunk", 20, 20)]


def test_damage(running: cores.Running, tmp_path: Path) -> None:
    """A chain of chunks that leads to other memory is reported, and the other chunks are read."""
    core = running.gcore()
    names = re.search(r"obstack names (0x\w+)", running.output)
    assert names is not None
    target = open_core(str(core))
    newest = target.word(int(names[1], 16) + 8)
    header = target.read(newest, 16)
    target.close()
    damaged = tmp_path / "damaged"
    damaged.write_bytes(core.read_bytes().replace(header, header[:8] + (newest + 64).to_bytes(8, "little")))
    answer = run_json("runtime", str(damaged))
    assert any(f"lead to {newest + 64:#x}, which is not a chunk" in one for one in answer["warnings"])
