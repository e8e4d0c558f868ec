"""`count` on a program that says how often it calls through which stacks: in GDB, in LLDB, and from the command line."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import truth
from debuggers import GDB_LOADER, LLDB, LLDB_LOADER, PATIENCE, Terminal, environment, gdb, gdb_terminal, lldb, lldb_terminal

from cores import Running

SOURCE = truth.PROGRAMS / "counting.c"
THREADS = 4
FUNCTIONS = ("event", "enter_scope", "leave_scope")
Words = Callable[[int, Sequence[str]], list[str]]


def by_command_line(pid: int, words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "findleaks", "count", *words, "--pid", str(pid)]


def by_gdb(pid: int, words: Sequence[str]) -> list[str]:
    return ["gdb", "-nx", "-batch", "-p", str(pid), "-ex", f"source {GDB_LOADER}", "-ex", "leaks count " + shlex.join(words)]


def by_lldb(pid: int, words: Sequence[str]) -> list[str]:
    loading = ["-O", f"command script import {LLDB_LOADER}"]
    return [LLDB, "-x", "--no-use-colors", "-b", *loading, "-p", str(pid), "-o", "leaks count " + shlex.join(words), "-o", "detach"]


DOORS = {"command line": by_command_line, "gdb": by_gdb, "lldb": by_lldb}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("counting") / "counting"
    subprocess.run(["gcc", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-o", str(output), str(SOURCE), "-pthread"], check=True)
    return output


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest) -> Words:
    return DOORS[request.param]


@pytest.fixture
def running(program: Path, tmp_path: Path) -> Iterator[Running]:
    with Running([str(program), str(THREADS)], tmp_path / "run") as run:
        yield run


def places(program: Path, pid: int) -> dict[str, int]:
    """Where the program's functions are in memory."""
    base = int(Path(f"/proc/{pid}/maps").read_text().split("-")[0], 16)
    lines = subprocess.run(["nm", str(program)], capture_output=True, text=True, check=True).stdout.splitlines()
    return {words[2]: base + int(words[0], 16) for words in map(str.split, lines) if len(words) == 3 and words[2] in FUNCTIONS}


def code(program: Path, pid: int) -> dict[str, bytes]:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        return {name: os.pread(memory.fileno(), 16, address) for name, address in places(program, pid).items()}


def until(condition: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    limit = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < limit, f"not within {patience} s: {what}"
        time.sleep(0.02)


def printed(running: Running) -> str:
    return (running.folder / "stdout").read_text()


def unharmed(program: Path, running: Running, before: dict[str, bytes]) -> None:
    """Nobody holds the process, its code is as it was, and it runs through the places that had breakpoints."""
    assert "TracerPid:\t0\n" in Path(f"/proc/{running.pid}/status").read_text()
    assert code(program, running.pid) == before
    (running.folder / "go").touch()
    until(lambda: "done" in printed(running), "the calls")
    (running.folder / "again").touch()
    until(lambda: "alive" in printed(running), "the process to call event again")


class Counting:
    """A counter at work: `finish` gives what it printed. The process has its breakpoints."""

    def __init__(self, door: Words, words: Sequence[str], program: Path, running: Running) -> None:
        before = code(program, running.pid)
        self.process = subprocess.Popen(
            door(running.pid, words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environment()
        )
        until(lambda: code(program, running.pid)["event"] != before["event"] or self.process.poll() is not None, "the breakpoint")

    def finish(self) -> str:
        try:
            out, self.error = self.process.communicate(timeout=PATIENCE)
        finally:
            self.process.kill()
        return out


def told(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith('{"schema"')]


def counted(table: dict[str, Any]) -> Counter[str]:
    found: Counter[str] = Counter()
    for stack in table["stacks"]:
        assert stack["complete"]
        names = [frame["function"] for frame in stack["frames"]]
        found[";".join(names[: names.index("work") + 1])] += stack["count"]
    return found


def expected(running: Running, column: int) -> Counter[str]:
    until(lambda: "done" in printed(running), "the program to say what it did")
    rows = [line.split() for line in printed(running).splitlines() if line.startswith("event;")]
    return Counter({row[0]: int(row[column]) for row in rows if row[column] != "0"})


TOTAL = (20 + 15 + 10 + 12 + 3 * 7) * THREADS * (THREADS + 1) // 2


def test_every_call_by_its_stack(door: Words, program: Path, running: Running) -> None:
    """Also two stacks that are the same for their innermost 3,000 bytes, and frames of varying size."""
    before = code(program, running.pid)
    counting = Counting(door, ["event", "--events", str(TOTAL), "--json"], program, running)
    (running.folder / "go").touch()
    (table,) = told(counting.finish())
    assert counted(table) == expected(running, 1)
    assert (table["events"], table["matched"], table["end"]) == (TOTAL, TOTAL, "asked")
    assert [one["function"] for one in table["functions"]] == ["event"]
    unharmed(program, running, before)


def test_outside_a_scope_of_ones_own(door: Words, program: Path, running: Running) -> None:
    """Threads are counted apart: those of one are no scopes of another."""
    before = code(program, running.pid)
    words = ["event", "--enter", "enter_scope", "--leave", "leave_scope", "--events", str(TOTAL), "--json"]
    counting = Counting(door, words, program, running)
    (running.folder / "go").touch()
    (table,) = told(counting.finish())
    assert counted(table) == expected(running, 2)
    assert table["events"] == TOTAL
    assert table["matched"] == sum(expected(running, 2).values())
    unharmed(program, running, before)


def test_when_and_every_and_for(door: Words, program: Path, running: Running) -> None:
    before = code(program, running.pid)
    counting = Counting(door, ["event", "--when", "*(int*)$rdi == 0", "--every", "1", "--for", "8", "--json"], program, running)
    (running.folder / "go").touch()
    tables = told(counting.finish())
    assert len(tables) >= 3
    assert [table["last"] for table in tables] == [False] * (len(tables) - 1) + [True]
    assert [table["events"] for table in tables] == sorted(table["events"] for table in tables)
    assert (tables[-1]["events"], tables[-1]["matched"], tables[-1]["end"]) == (TOTAL, THREADS, "time")
    assert counted(tables[-1]) == {"event;alpha;work": THREADS}
    unharmed(program, running, before)


def test_an_idle_process_ends_in_time(door: Words, program: Path, running: Running) -> None:
    before = code(program, running.pid)
    out = Counting(door, ["event", "--for", "1"], program, running).finish()
    assert re.search(r"^[1-9]\.\d s: 0 calls, 0 stacks$", out, re.M)
    assert "stopped" in out
    unharmed(program, running, before)


def test_ctrl_c_ends_with_the_table(program: Path, running: Running) -> None:
    before = code(program, running.pid)
    counting = Counting(by_command_line, ["event"], program, running)
    (running.folder / "go").touch()
    until(lambda: "done" in printed(running), "all calls")
    counting.process.send_signal(signal.SIGINT)
    out = counting.finish()
    assert f"s: {TOTAL} calls, " in out
    assert f"interrupted; {running.pid} runs on, nothing left in it." in out
    assert counting.process.returncode == 0
    unharmed(program, running, before)


@pytest.mark.parametrize("terminal", [gdb_terminal, lldb_terminal], ids=["gdb", "lldb"])
def test_keys_at_a_debuggers_prompt(terminal: Callable[..., Terminal], program: Path, running: Running) -> None:
    """Tables appear as they grow; Ctrl-C ends it, and the prompt is there again."""
    before = code(program, running.pid)
    with terminal("-p", str(running.pid)) as debugger:
        debugger.press("leaks count event --every 1\n")
        until(lambda: code(program, running.pid)["event"] != before["event"], "the breakpoint")
        (running.folder / "go").touch()
        debugger.until(rf" s: {TOTAL} calls, ")
        time.sleep(0.4)  # the table is whole, and the next one not yet due: the process runs
        debugger.press("\x03")
        debugger.until("interrupted; the breakpoints are gone|leaks: interrupted")  # the latter where it struck in the middle of a table
        debugger.run("detach", "detached")
    unharmed(program, running, before)


def test_its_death_leaves_the_process_unharmed(program: Path, running: Running) -> None:
    """Killed itself, it takes its GDB along, which lets the process go."""
    before = code(program, running.pid)
    counting = Counting(by_command_line, ["event"], program, running)
    counting.process.kill()
    counting.finish()
    until(lambda: "TracerPid:\t0\n" in Path(f"/proc/{running.pid}/status").read_text(), "GDB to let go")
    unharmed(program, running, before)


@pytest.mark.parametrize(("how", "why"), [("end", "ended"), ("crash", "ended")])
def test_the_process_ends(how: str, why: str, door: Words, program: Path, running: Running) -> None:
    counting = Counting(door, ["event", "--json"], program, running)
    (running.folder / "go").touch()
    until(lambda: "done" in printed(running), "all calls")
    (running.folder / how).touch()
    (table,) = told(counting.finish())
    assert table["events"] == TOTAL + 1
    assert table["end"] == ("stop" if how == "crash" and door is not by_command_line else why)
    if table["end"] == "stop":
        assert table["why"] == "it received SIGSEGV"


ERRORS = {
    "count no_such": "no function 'no_such' in any symbol table of the process",
    "count event --outside-scope napi": "the rule napi does not work on this process: no function napi_open_handle_scope",
    "count event --outside-scope v8": "the rule v8 does not work on this process: v8::HandleScope::NumberOfHandles has no symbol",
    "count event --outside-scope other": "--outside-scope other: no such rule; there are v8, napi, jni, python-gil",
    "count event --enter event": "--leave is missing",
    "count event --enter event --leave leave_scope": "event itself opens or closes the scope",
    "count 0x10": "0x10 is no code of the process",
}


def test_errors(program: Path, running: Running) -> None:
    before = code(program, running.pid)
    output = lldb([*(f"leaks {words}" for words in ERRORS), "detach"], "-p", str(running.pid))
    for words, line in ERRORS.items():
        assert f"leaks: {line}" in output
        assert f"leaks: {line}" in gdb([f"leaks {words}"], "-p", str(running.pid))
    for words, line in ERRORS.items():
        done = subprocess.run(
            [sys.executable, "-m", "findleaks", *words.split(), "--pid", str(running.pid)],
            capture_output=True,
            text=True,
            env=environment(),
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert line in done.stderr
        assert len(done.stderr.splitlines()) == 1
    unharmed(program, running, before)


def test_cores_do_not_run(running: Running) -> None:
    core = str(running.gcore())
    line = "count needs a process that runs, a core does not: `stacks` and `scopes` tell what a core can"
    done = subprocess.run([sys.executable, "-m", "findleaks", "count", "event", core], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, f"findleaks: {line}\n")
    assert f"leaks: {line}" in gdb(["leaks count event"], "-c", core)
    assert f"leaks: {line}" in lldb(["leaks count event"], "-c", core)
