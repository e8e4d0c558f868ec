"""The stub and breakpoints are removed: repeatedly, under load, and after debuggers are killed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import debuggers_matrix
import pytest
from counts import Working, by_command_line, by_gdb, by_lldb, check_unharmed, code, parse_tables, places, until
from debuggers import PATIENCE, environment, gdb
from patched import Busy, build, busy, by_line, get_tracer, guardians, has_ended, mappings, runs, stubs, text_of

from cores import Running, states


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Busy]:
    with busy(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("counting"), "counting")


@pytest.mark.parametrize("times", [10, pytest.param(100, marks=pytest.mark.matrix)])
def test_stub_is_inserted_and_removed_repeatedly(times: int, running: Busy) -> None:
    """Under load, threads are in the function, in the stub and in a signal handler at any time."""
    before, maps = text_of(running), mappings(running.pid)
    output = gdb(["leaks count event --inject --events 2000 --json"] * times, "-p", str(running.pid))
    tables = parse_tables(output)
    assert len(tables) == times
    for table in tables:
        assert (table["events"], table["matched"], table["end"], table["warnings"]) == (2000, 2000, "asked", [])
        assert {frame["function"] for stack in table["stacks"] for frame in stack["frames"]} >= {"event", "down", "call", "start_thread"}
        assert all(stack["complete"] for stack in table["stacks"])
    assert text_of(running) == before
    assert (stubs(running.pid), mappings(running.pid)) == ([], maps)
    runs(running)


def kill_debugger(process: subprocess.Popen[str], pid: int, guardian: bool) -> None:
    """Kill the debugger that traces the process, and optionally its guardian."""
    debugger = process.pid
    until(lambda: len(guardians(debugger)) == 1, "the guardian")
    (beside,) = guardians(debugger)
    # Wait until counting has begun. If a debugger is killed while it stops the threads, only its guardian can undo the pending SIGSTOP.
    until(lambda: "t" not in states(pid), "the debugger to let it run")
    if guardian:
        os.kill(beside, signal.SIGKILL)
    os.kill(debugger, signal.SIGKILL)
    process.communicate()
    until(lambda: not get_tracer(pid), "the kernel to let go")
    until(lambda: has_ended(beside), "the guardian to have done its work")


def counter(running: Busy) -> Working:
    at = {"event": running.at["event"]}
    return Working(by_gdb(running.pid, ["event", "--inject"]), running.pid, at, code(running.pid, at))


def test_a_killed_debugger_leaves_nothing(running: Busy) -> None:
    """If the debugger is killed, its guardian removes the stub while threads run through it."""
    before = text_of(running)
    working = counter(running)
    kill_debugger(working.process, running.pid, guardian=False)
    assert text_of(running) == before
    assert not stubs(running.pid)
    runs(running)


def test_process_continues_if_the_debugger_is_killed_while_stopping_it(running: Busy) -> None:
    """A debugger stops threads by SIGSTOP. A SIGSTOP that is still pending after the debugger is killed would stop the process
    permanently."""
    before = text_of(running)
    working = counter(running)
    until(lambda: len(guardians(working.process.pid)) == 1, "the guardian")
    (guardian,) = guardians(working.process.pid)
    until(lambda: "t" not in states(running.pid), "the debugger to let it run")
    os.kill(guardian, signal.SIGSTOP)
    until(lambda: states(guardian) == {"T"}, "the guardian to be held")
    working.process.kill()
    working.process.communicate()
    until(lambda: not get_tracer(running.pid), "the kernel to let go")
    os.kill(running.pid, signal.SIGSTOP)
    until(lambda: states(running.pid) == {"T"}, "the process to be stopped")
    os.kill(guardian, signal.SIGCONT)
    until(lambda: has_ended(guardian), "the guardian to have done its work")
    assert text_of(running) == before
    assert not stubs(running.pid)
    runs(running)


@pytest.mark.parametrize("next_", ["inject", "lldb", pytest.param("breakpoints", marks=pytest.mark.matrix)])
def test_next_debugger_removes_a_remaining_stub(next_: str, running: Busy) -> None:
    """If the guardian is killed, too, the process continues through the stub until the next `count` removes it."""
    before = text_of(running)
    working = counter(running)
    kill_debugger(working.process, running.pid, guardian=True)
    assert text_of(running) != before
    (stub,) = stubs(running.pid)
    runs(running)
    words = ["event", "--events", "50", "--json", *(["--inject"] if next_ == "inject" else [])]
    command = by_lldb(running.pid, words) if next_ == "lldb" else by_command_line(running.pid, words)
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=PATIENCE)
    (table,) = parse_tables(done.stdout)
    assert table["events"] == table["matched"] == 50
    line = f"an earlier count --inject or track was killed: its stub at 0x{stub.split('-')[0]} was removed, 1 function(s) restored"
    assert table["warnings"][0] == line
    assert text_of(running) == before
    if next_ == "lldb":
        assert "stay mapped, without effect" in table["warnings"][1]
        assert by_line(running.pid, "event", "--for", "0.1").returncode == 0
    else:
        assert len(table["warnings"]) == 1
    assert stubs(running.pid) == []
    runs(running)


@pytest.mark.parametrize("front_end", [by_gdb, by_lldb], ids=["gdb", "lldb"])
def test_breakpoints_of_a_killed_debugger_are_removed(front_end: Any, counting: Path, tmp_path: Path) -> None:
    """The guardian of a killed debugger removes its breakpoints before the next calls."""
    with Running([str(counting), "4"], tmp_path) as running:
        at = places(running.pid, counting, ("event",))
        before = code(running.pid, at)
        working = Working(front_end(running.pid, ["event"]), running.pid, at, before)
        kill_debugger(working.process, running.pid, guardian=False)
        check_unharmed(running, at, before)


@pytest.mark.matrix
@pytest.mark.parametrize("name", debuggers_matrix.GDBS)
def test_gdb_releases(name: str, running: Busy) -> None:
    before, maps = text_of(running), mappings(running.pid)
    output = debuggers_matrix.get(name).run(["leaks count event --inject --events 100000 --json"] * 3, pid=running.pid)
    tables = parse_tables(output)
    assert len(tables) == 3, output
    for table in tables:
        assert (table["events"], table["matched"], table["warnings"]) == (100000, 100000, [])
        assert all(stack["complete"] for stack in table["stacks"])
    assert text_of(running) == before
    assert (stubs(running.pid), mappings(running.pid)) == ([], maps)
    runs(running)
