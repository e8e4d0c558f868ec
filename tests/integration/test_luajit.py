"""LuaJIT: each block of its allocator, objects by type, garbage, and names of variables."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import building
import debian
import pytest
import real
import truth
from debuggers import gdb, lldb, objects, run_cli, run_json

import cores
from findleaks.target.core import open_core

REMAINDER, PAGE, DIRECT = 32, 4096, 1 << 17
"""The size of a block is at least the requested size. The difference is less than the smallest chunk, or less than a page if the block
has its own mapping."""
program = building.fixture("luajit_blocks.c", "-O1", "-I/usr/include/luajit-2.1", "-lluajit-5.1")


@pytest.fixture(scope="module")
def blocks(program: Path) -> Iterator[cores.Running]:
    with cores.Running([str(program)], program.parent / "blocks") as made:
        yield made


@pytest.fixture(scope="module")
def early(program: Path) -> int:
    """Return the number of blocks in use in a Lua state that has run nothing."""
    with cores.Running([str(program), "bare"], program.parent / "bare") as made:
        return sum(1 for block in truth.ask("--pid", str(made.pid))[0] if block["allocator"] == "LuaJIT" and block["state"] == "in-use")


def rows(output: str, word: str) -> dict[int, int]:
    """Return the addresses and sizes in the lines that begin with this word."""
    lines = (line.split() for line in output.splitlines() if line.startswith(word + " 0x"))
    return {int(parts[1], 16): int(parts[2]) if parts[2:] else 0 for parts in lines}


def check(output: str, early: int, where: list[str]) -> None:
    """Check that the blocks in use are the blocks that the program recorded and older blocks. findleaks reports all garbage, and no other
    block."""
    answer, warnings = truth.ask(*where)
    assert not [warning for warning in warnings if "LuaJIT" in warning]
    found = {int(block["address"], 16): block for block in answer if block["allocator"] == "LuaJIT"}
    used, freed = rows(output, "used"), rows(output, "freed")
    (gone,) = re.findall(r"early (\d+)", output)
    assert len(used) > 20_000 and max(used.values()) > 1 << 18
    for address, size in used.items():
        block = found.pop(address)
        assert block["state"] == "in-use" and size <= block["size"] < size + (REMAINDER if size < DIRECT else PAGE)
        found[address] = block
    for address in freed:
        assert found.get(address, {"state": "free"})["state"] == "free"
    older = [address for address, block in found.items() if block["state"] == "in-use" and address not in used]
    assert len(older) + int(gone) == early
    leaked = {address for address, block in found.items() if block.get("kind") in truth.LOST}
    kept, garbage = rows(output, "kept"), rows(output, "garbage")
    assert len(kept) > 8000 and len(garbage) == 1000
    lights = dict(re.findall(r"light (\w+) (\w+)", output))
    kinds = {block["address"]: block.get("kind") for block in answer}
    assert len(lights) == 280 and {address for address, kind in lights.items() if kind == "lost"} == {
        address for address in lights if kinds[address] in truth.LOST
    }
    assert not leaked & set(kept) and len(set(garbage) - leaked) <= 50  # stale words may refer to a few objects that refer to other objects


def test_blocks_of_a_live_process(blocks: cores.Running, early: int) -> None:
    where = ["--pid", str(blocks.pid)]
    check(blocks.output, early, where)
    assert run_cli("verify", *where).returncode == 0
    answer = run_json("find", *where)
    others = [one["blocks"] for one in answer["groups"] if one["kind"] == "definite" and not one["garbage"]]
    assert answer["trusted"] and sum(others) == blocks.output.count(" lost\n")  # block of the program


def test_blocks_in_a_core_by_the_kernel(program: Path, early: int) -> None:
    with cores.Running([str(program)], program.parent / "kernel") as made:
        check(made.output, early, [str(made.kernel_core())])


@pytest.mark.matrix
def test_blocks_in_a_core_by_gdb(blocks: cores.Running, early: int) -> None:
    check(blocks.output, early, [str(blocks.gcore())])


@pytest.mark.parametrize("debugger", [gdb, pytest.param(lldb, marks=pytest.mark.matrix)])
def test_debuggers(blocks: cores.Running, debugger: Any) -> None:
    (text,) = objects(debugger(["leaks find --json"], "-p", str(blocks.pid)))
    assert json.loads(text)["totals"] == run_json("find", "--pid", str(blocks.pid))["totals"]


def test_totals_are_those_of_luajit(blocks: cores.Running) -> None:
    """LuaJIT counts requested bytes. They are the bytes of the blocks that the program recorded, plus the bytes of older blocks."""
    (bytes_,) = re.findall(r"bytes (\d+)", blocks.output)
    (lua,) = run_json("runtime", "--pid", str(blocks.pid))["runtimes"]
    assert lua["counters"]['collectgarbage("count")'] == int(bytes_)
    assert sum(rows(blocks.output, "used").values()) <= int(bytes_)


def newer() -> list[str]:
    """Return the command of LuaJIT of 2025."""
    folder = debian.cache() / "luajit-trixie"
    debian.unpack_packages("trixie", ["luajit"], folder, {}, dependencies=True)
    libraries = folder / "root" / "usr" / "lib" / "x86_64-linux-gnu"
    return [str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries), str(folder / "root/usr/bin/luajit")]


@pytest.mark.parametrize("command", [lambda: [real.executable("luajit")], pytest.param(newer, marks=pytest.mark.matrix)])
def test_objects(command: Callable[[], list[str]], tmp_path: Path) -> None:
    """findleaks reports the same objects by type, garbage and variables as in test_lua.py."""
    words = [*command(), str(truth.PROGRAMS / "objects.lua"), "drop"]
    with cores.Running(words, tmp_path / "run", stdin=-1) as made:
        where = ["--pid", str(made.pid)]
        answer = run_json("find", *where)
        (lua,) = run_json("runtime", "--limit", "0", *where)["runtimes"]
        roots = run_json("roots", "--limit", "20", *where)["roots"]
        kept = json.loads(run_cli("blocks", "--json", "--type", "Point", "--limit", "1", *where).stdout.splitlines()[0])
        described = run_cli("whatis", kept["address"], *where).stdout
    groups = [one for one in answer["groups"] if one["type"] == "Order"]
    kinds = {(one["kind"], one["runtime"], one["garbage"]) for one in groups}
    assert answer["trusted"] and ("definite", "LuaJIT", True) in kinds
    assert kinds <= {("definite", "LuaJIT", True), ("possible", "LuaJIT", False)}  # a stale word may refer to the middle of an object
    assert 140 < sum(one["blocks"] for one in groups) <= 154  # a stale word divides a cycle
    types = {row["name"]: row["objects"] for row in lua["types"]}
    assert (types["Order"], types["Point"], types["function at programs/objects.lua:27"]) == (600, 200, 50)
    named = {row["name"].replace(" (LuaJIT variable)", ""): row["container"]["length"] for row in roots if row["container"]}
    wanted = {"local kept in programs/objects.lua": 300, "points": 200, "handlers": 50}
    assert {name: named.get(name) for name in wanted} == wanted
    assert "Lua object: Point" in described


def test_damage(blocks: cores.Running, tmp_path: Path) -> None:
    """An overwritten header is reported, and the blocks before it are read."""
    core = blocks.gcore()
    data = bytearray(core.read_bytes())
    places = sorted(rows(blocks.output, "used"))
    address = places[len(places) // 2]
    target = open_core(str(core))
    place = data.find(target.read(address & -4096, 4096)) + address % 4096 - 8
    target.close()
    data[place : place + 8] = (0xDEAD0007).to_bytes(8, "little")
    core = tmp_path / "damaged.core"
    core.write_bytes(data)
    answer = run_json("find", str(core))
    assert not answer["trusted"] and any(f"LuaJIT's chunk at {address - 16:#x} has an impossible size" in one for one in answer["warnings"])
    assert run_cli("verify", str(core)).returncode == 1


def test_types_of_ffi(tmp_path: Path) -> None:
    """Objects of FFI have their types in C."""
    with cores.Running([real.executable("luajit"), str(truth.PROGRAMS / "ffi.lua")], tmp_path / "run", stdin=-1) as made:
        (lua,) = run_json("runtime", "--limit", "0", "--pid", str(made.pid))["runtimes"]
    types = {row["name"]: row["objects"] for row in lua["types"]}
    for name in ("struct point", "item_t", "uint64_t", "struct point*", "char*[]", "union value"):
        assert 100 <= types.get(f"cdata {name}", 0) <= 102, (name, types)  # operations on cdata make some more
