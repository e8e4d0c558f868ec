"""Handles and requests of libuv, by type and callback. The program has the numbers of each."""

from __future__ import annotations

import json
import re
from pathlib import Path

import building
import pytest
from debuggers import gdb, lldb, objects, run_cli, run_json

import cores

TIMERS, SOCKETS, CLOSED, REQUESTS, WAKES = 1200, 40, 50, 25, 20

program = building.fixture("uv_handles.c", "-O1", "-luv")
running = building.running()


@pytest.fixture(scope="module")
def core(running: cores.Running) -> str:
    return str(running.gcore())


def check_types(*where: str) -> None:
    (one,) = run_json("runtime", *where)["runtimes"]
    assert {row["name"]: row["objects"] for row in one["types"]} == {
        "uv_timer_t of tick": TIMERS,
        "uv_timer_t of tick (closed)": CLOSED,
        "uv_tcp_t": SOCKETS,
        "uv_fs_t": REQUESTS,
        "uv_async_t of wake": WAKES,
    }


def test_a_live_process(running: cores.Running) -> None:
    check_types("--pid", str(running.pid))


def test_leaks(core: str) -> None:
    """Closed handles and complete requests are leaked: libuv does not refer to them. Open handles are in use."""
    check_types(core)
    answer = run_json("find", core)
    leaked = {group["type"]: group["blocks"] for group in answer["groups"] if group["kind"] == "definite"}
    # The stack may have the addresses of the last ones.
    assert set(leaked) == {"uv_timer_t of tick (closed)", "uv_fs_t"} and answer["trusted"]
    assert CLOSED - 2 <= leaked["uv_timer_t of tick (closed)"] <= CLOSED and REQUESTS - 2 <= leaked["uv_fs_t"] <= REQUESTS
    assert answer["totals"]["possible"]["blocks"] == 0


def test_first_screen(core: str) -> None:
    """`verdict` reports many open handles of one type."""
    found = {one["finding"]: one for one in run_json("verdict", core)["findings"]}
    text = found["libuv-handles"]["text"]
    assert f"{TIMERS:,} handles uv_timer_t of libuv are open, {TIMERS:,} of them active" in text, text
    assert found["libuv-handles"]["cause"] == f"By callback: {TIMERS:,} of tick."


def test_similar_structures_and_shared_blocks(tmp_path: Path) -> None:
    """Structures that are similar to handles and requests are none. The bytes of a block with many handles are counted once. C++ objects
    have the name of their class. Loops may be on a stack, or part of a larger structure."""
    program = building.compile_program(tmp_path, "uv_similar.cpp", "-O1", "-luv", "-pthread")
    with cores.Running([str(program)], tmp_path / "run") as made:
        similar = str(made.gcore())
    (one,) = run_json("runtime", similar)["runtimes"]
    assert {re.sub(r"\(.*", "", row["name"]): row["objects"] for row in one["types"]} == {
        "uv_timer_t of tick": 2000,
        "uv_timer_t": 30,
        "uv_tcp_t": 30,
        "uv_idle_t": 40,
    }
    assert 2000 * 152 <= max(row["bytes"] for row in one["types"]) < 2000 * 160
    answer = run_json("find", similar)
    assert answer["totals"]["definite"]["blocks"] == answer["totals"]["possible"]["blocks"] == 0, answer["groups"]
    sessions = run_cli("blocks", "--json", "--limit", "0", "--type", "Session", similar).stdout.splitlines()
    assert [json.loads(one)["type_from"] for one in sessions] == ["rtti"] * 30


@pytest.mark.matrix
def test_front_ends(core: str) -> None:
    wanted = run_json("find", core)["groups"]
    for debugger in (gdb, lldb):
        (text,) = objects(debugger(["leaks find --json"], "-c", core))
        assert json.loads(text)["groups"] == wanted
