"""`runtime` lists APR's pools by tag. The program prints the same number of pools. Their bytes are at most a little more than the program
requested."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

import aprs
import building
import pytest
import truth
from debuggers import gdb, lldb, objects, run_cli, run_json

import cores

CONNECTIONS, ENDED = 50, 20
NODE, PAGE = 40, 4096


def build(folder: Path, name: str = "apr_pools.c") -> Path:
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "apr-1"], check=True, capture_output=True, text=True).stdout.split()
    return building.compile_program(folder, name, "-O1", *flags)


program = building.by(build)
running = building.running()


def check(running: cores.Running, *where: str) -> None:
    """The used bytes of a connection's pool are those requested, the pool's own structure, and the headers of its nodes."""
    asked = int(running.output.split()[0])
    (one,) = run_json("runtime", *where)["runtimes"]
    types = {row["name"]: row for row in one["types"]}
    assert {name: row["objects"] for name, row in types.items()} == {
        "apr_global_pool": 1,
        "apr_initialize": 1,
        "server": 1,
        "connection": CONNECTIONS - ENDED,
    }
    used, own = divmod(types["connection"]["own"]["used"], CONNECTIONS - ENDED)
    assert own == 0 and types["connection"]["bytes"] % PAGE == 0
    assert asked < used < asked + 200 + NODE * (asked // PAGE)
    parts = {part["name"]: part for part in one["parts"]}
    assert parts["pools"]["bytes"] == sum(row["bytes"] for row in types.values())
    assert parts["free nodes"]["bytes"] * (CONNECTIONS - ENDED) == types["connection"]["bytes"] * ENDED


def test_a_live_process(running: cores.Running) -> None:
    check(running, "--pid", str(running.pid))


def test_a_core(running: cores.Running) -> None:
    core = str(running.gcore())
    check(running, core)
    shares = {share["of"]: share["bytes"] for share in run_json("verdict", core)["shares"]}
    assert any("APR" in (name or "") for name in shares)


@pytest.mark.matrix
def test_nodes_in_blocks(program: Path, tmp_path: Path) -> None:
    """If libapr allocates nodes with malloc, each node is a block. The type of the block is the tag of the pool. All are reachable."""
    with cores.Running([str(program)], tmp_path, {"LD_LIBRARY_PATH": str(aprs.without_mmap())}) as made:
        check(made, "--pid", str(made.pid))
        core = str(made.gcore())
    check(made, core)
    answer = run_json("find", core)
    assert answer["trusted"] and answer["groups"] == [] and answer["totals"]["possible"]["blocks"] == 0
    (one,) = run_json("runtime", core)["runtimes"]
    assert sum(part["bytes"] for part in one["parts"]) < answer["totals"]["in_use"]["bytes"]
    blocks = [json.loads(line)["size"] for line in run_cli("blocks", "--type", "connection", "--json", core).stdout.splitlines()]
    (connections,) = [row for row in one["types"] if row["name"] == "connection"]
    assert len(blocks) > CONNECTIONS and 0 <= sum(blocks) - connections["bytes"] < 16 * len(blocks)  # a block may have spare bytes
    for debugger in (gdb, lldb):
        (text,) = objects(debugger(["leaks find --json"], "-c", core))
        assert json.loads(text)["totals"] == answer["totals"]


def check_stale_words(program: Path, folder: Path, environment: Optional[Mapping[str, str]] = None) -> None:
    with cores.Running([str(program), "100", "managed", "stale"], folder, environment) as made:
        blocks, _ = truth.ask(str(made.kernel_core()))
    kinds = {block["address"]: block.get("kind") for block in blocks}
    lost, kept = ([line.split()[1] for line in made.output.splitlines() if line.startswith(word)] for word in ("lost", "kept"))
    assert len(lost) > 1000 and len(kept) == 26
    assert {kinds[address] for address in lost} == {"definite"} and {kinds[address] for address in kept} == {"reachable"}


def test_stale_words(program: Path, tmp_path: Path) -> None:
    """Words in unused parts of nodes, and in free nodes, are not references."""
    check_stale_words(program, tmp_path)


@pytest.mark.matrix
def test_stale_words_in_blocks(program: Path, tmp_path: Path) -> None:
    check_stale_words(program, tmp_path, {"LD_LIBRARY_PATH": str(aprs.without_mmap())})


def test_first_screen(program: Path, tmp_path: Path) -> None:
    """`verdict` names the pool that has most of the memory, and the pools below it."""
    with cores.Running([str(program), "1000"], tmp_path) as made:
        where = "--pid", str(made.pid)
        finding, last = run_json("verdict", *where)["findings"]
        found = run_cli("find", *where).stdout
    assert (finding["finding"], last["finding"]) == ("apr-pool", "nothing-lost") and "evidence" in finding
    assert "apr_global_pool > server and 30 pools below it have 29 MiB" in finding["text"]
    assert (
        finding["resident_bytes"] < finding["bytes"] and f"({finding['resident_bytes'] / 2**20:.0f} MiB of it resident)" in finding["text"]
    )
    assert finding["cause"].startswith("By name: 30 of connection (29 MiB)")
    assert re.search(r"in APR's pools, which are freed as a whole\. Memory that a pool no\s+longer needs", found), found


def test_texts(program: Path, tmp_path: Path) -> None:
    """`verdict` quotes the texts that the largest pools contain, those that differ only in numbers as one."""
    with cores.Running([str(program), "10", "texts"], tmp_path) as made:
        core = str(made.gcore())
    (finding,) = [one for one in run_json("verdict", core)["findings"] if one["finding"] == "apr-pool"]
    assert " > server > lookup has 4.9 MiB" in finding["text"], finding
    first, second = finding["evidence"]["texts"]
    assert re.fullmatch(r'"/users/\d+/orders"', first) and second == '"Content-Type"'
    assert finding["cause"].endswith(f"Texts in lookup: {first}, {second}.")


def test_unmanaged_pools(program: Path, tmp_path: Path) -> None:
    """Pools that are not below the global pool are found. A pool without a tag has the name of the variable that refers to its memory."""
    with cores.Running([str(program), "1000", "unmanaged"], tmp_path) as made:
        core = str(made.gcore())
    (one,) = run_json("runtime", core)["runtimes"]
    objects = {row["name"]: row["objects"] for row in one["types"]}
    named = {"apr_global_pool": 1, "apr_initialize": 1, "server": 1, "(no tag), variable table": 1}
    assert objects == {**named, "connection": CONNECTIONS - ENDED}
    (finding,) = [one for one in run_json("verdict", core)["findings"] if one["finding"] == "apr-pool"]
    assert "the APR pool server and 31 pools below it have 29 MiB" in finding["text"]


@pytest.mark.parametrize("is_malloc", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_pools_to_which_nothing_refers(is_malloc: bool, tmp_path: Path) -> None:
    """Pools without a parent are found by their nodes, also if the allocator belongs to none of them. Destroyed ones are not listed."""
    environment = {"LD_LIBRARY_PATH": str(aprs.without_mmap())} if is_malloc else None
    with cores.Running([str(build(tmp_path, "apr_unmanaged.c"))], tmp_path / "run", environment) as made:
        core = str(made.kernel_core())
    (one,) = run_json("runtime", core)["runtimes"]
    objects = {row["name"]: row["objects"] for row in one["types"]}
    assert objects == {"apr_global_pool": 1, "apr_initialize": 1, "shared": 500, "own": 100}
    if is_malloc:  # nodes are blocks
        groups = {group["type"]: group["blocks"] for group in run_json("find", core)["groups"]}
        assert groups == {"shared": 500, "own": 100}
        return
    (finding,) = [one for one in run_json("verdict", core)["findings"] if one["finding"] == "apr-pool"]
    assert "500 APR pools shared, which are below no other pool, have 12 MiB" in finding["text"]
    assert "apr_pool_destroy" in str(finding)


BUCKET = 128
"""Bytes of a small block of a bucket allocator."""


@pytest.mark.parametrize("is_malloc", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_blocks_of_bucket_allocators(is_malloc: bool, tmp_path: Path) -> None:
    """The state and the size of each block. Larger blocks that were freed are not blocks. A destroyed bucket allocator has no blocks."""
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "apr-util-1", "apr-1"], check=True, capture_output=True, text=True)
    made = building.compile_program(tmp_path, "apr_buckets.c", "-O1", *flags.stdout.split())
    environment = {"LD_LIBRARY_PATH": str(aprs.without_mmap())} if is_malloc else None
    with cores.Running([str(made)], tmp_path / "run", environment) as process:
        live, core = ["--pid", str(process.pid)], [str(process.gcore())]
        assert run_json("find", *live)["totals"] == run_json("find", *core)["totals"]
    blocks = {int(block["address"], 16): block for block in truth.ask(*core)[0] if block["allocator"] == "apr-buckets"}
    kinds = {"held": "reachable", "lost": "definite", "freed": None}
    found = 0
    for kind, size, address in (line.split() for line in process.output.splitlines() if " 0x" in line):
        if kind == "freed" and int(size) > BUCKET:
            continue
        block = blocks.pop(int(address, 16))
        length = BUCKET if int(size) <= BUCKET else (int(size) + 7) // 8 * 8
        assert (block["size"], block["state"] == "in-use", block.get("kind")) == (length, kind != "freed", kinds[kind]), (kind, address)
        found += 1
    assert found == 580 and not blocks
