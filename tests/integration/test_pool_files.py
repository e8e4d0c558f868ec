"""--pools: the two examples of docs/pool-files.md divide the pools of a program into the blocks that the program prints."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import building
import debuggers
import documented
import pytest
from debuggers import run_cli

import cores

program = building.fixture("described_pools.c", "-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror")
pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="TOML needs Python 3.11")


def parse_records(output: list[str]) -> dict[int, tuple[str, int, str]]:
    """Return {address: (pool, size, state)} from the program's output. The last line about a chunk counts, because free chunks are
    printed at the end."""
    found = {}
    for line in output:
        pool, address, size, state = line.split()
        found[int(address, 16)] = (pool, int(size), state)
    return found


def run_json(*words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run_cli(*words).stdout.splitlines()]


def check_records(pool: str, size: int, state: str) -> tuple[str, int, str, Any]:
    kinds = {"in-use": "reachable", "lost": "definite", "free": None}
    return pool, size, "free" if state == "free" else "in-use", kinds[state]


@pytest.mark.parametrize("picture", ["live", "kernel"])
def test_documented_examples(program: Path, tmp_path: Path, picture: str) -> None:
    file = tmp_path / "pools.toml"
    file.write_text(documented.pool_file())
    with cores.Running([str(program)], tmp_path / "run") as running:
        record = parse_records([line for line in running.output.splitlines() if line.startswith(("session-pool ", "messages "))])
        where = ["--pid", str(running.pid)] if picture == "live" else [str(running.kernel_core())]
        # Without the file, all blocks are reachable.
        (before,) = run_json("find", "--json", *where)
        assert before["totals"]["definite"]["blocks"] == 0
        states = ("in-use", "free")
        blocks = [one for state in states for one in run_json("blocks", "--state", state, "--json", "--pools", str(file), *where)]
        mine = {int(one["address"], 16): one for one in blocks if one["allocator"] in ("session-pool", "messages")}
        found = {at: (one["allocator"], one["size"], one["state"], one["kind"]) for at, one in mine.items()}
        assert found == {at: check_records(*one) for at, one in record.items()}
        (after,) = run_json("find", "--json", "--pools", str(file), *where)
        assert after["totals"]["definite"]["blocks"] == sum(state == "lost" for _, _, state in record.values()) == 200
        assert after["trusted"] and after["warnings"] == []
        verified = run_cli("verify", "--pools", str(file), *where)
        assert verified.returncode == 0 and "session-pool (pools.toml): heap sound: 255 blocks checked" in verified.stdout
        if picture == "live":
            return
        typed = [f"leaks find --json --pools {file}", "leaks find --json"]
        for output in (debuggers.gdb(typed, "-c", where[0]), debuggers.lldb(typed, "-c", where[0])):
            assert [json.loads(line) for line in debuggers.objects(output)] == [after, before]


CLASSES = """
[[pool]]
name = "small"
symbol = "request_pool"
slab = { first = 0, next = 0, header = 8, size = 4096 }
chunk = { size = { pool = 16 }, header = 8, free = { pool = 8 }, link = 8 }

[[pool]]
name = "medium"
symbol = "request_pool"
slab = { first = 24, next = 0, header = 8, size = 4096 }
chunk = { size = { pool = 40 }, header = 8, free = { pool = 32 }, link = 8 }

[[pool]]
name = "large"
symbol = "request_pool"
slab = { first = 48, next = 0, header = 16, size = { slab = 8, add = 16 } }
chunk = { size = { slab = 8 } }
"""


def test_size_classes_and_large_blocks(tmp_path: Path) -> None:
    """Each size class is an entry of the file. The header of a large block contains the size of the block without the header."""
    built = building.compile_program(tmp_path, "pool_classes.c", "-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror")
    file = tmp_path / "classes.toml"
    file.write_text(CLASSES)
    with cores.Running([str(built)], tmp_path / "run") as running:
        record = parse_records([line for line in running.output.splitlines() if line.startswith(("small ", "medium ", "large "))])
        words = ("--json", "--state", "all", "--pools", str(file), "--pid", str(running.pid))
        blocks = {int(one["address"], 16): one for one in run_json("blocks", *words) if one["allocator"] in ("small", "medium", "large")}
    found = {at: (one["allocator"], one["size"], one["state"], one["kind"]) for at, one in blocks.items()}
    assert found == {at: check_records(*one) for at, one in record.items()} and len(found) > 700


def test_a_file_that_does_not_fit(program: Path, tmp_path: Path) -> None:
    """If the file does not fit the program, the result is not trusted, and a message gives the reason. Suggested commands include the
    file."""
    file = tmp_path / "other.toml"
    file.write_text(documented.pool_file().replace("session_pool", "no_such_pool"))
    with cores.Running([str(program)], tmp_path / "run") as running:
        done = run_cli("find", "--pools", str(file), "--pid", str(running.pid))
        text = " ".join(done.stdout.split())
        assert "other.toml: session-pool: no variable no_such_pool in any loaded file" in text
        assert f"--pools {file} --pid {running.pid}" in text
        assert not run_json("find", "--json", "--pools", str(file), "--pid", str(running.pid))[0]["trusted"]
        wrong = run_cli("find", "--pools", str(tmp_path / "missing.toml"), "--pid", str(running.pid))
        assert wrong.returncode == 2 and "missing.toml: no such file or directory" in wrong.stderr
