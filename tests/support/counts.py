"""Run `count` in GDB, in LLDB and from the command line on a program that prints its own calls; check the result, and that the program is
undamaged."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from debuggers import GDB_LOADER, INDEXED, LLDB, LLDB_LOADER, PATIENCE, QUICKLY, environment

from cores import Running

Words = Callable[[int, Sequence[str]], list[str]]
Places = Mapping[str, int]
"""Addresses of the functions that get breakpoints, by name."""


def by_command_line(pid: int, words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "findleaks", "count", *words, "--pid", str(pid)]


def by_gdb(pid: int, words: Sequence[str]) -> list[str]:
    return ["gdb", "-nx", "-batch", *INDEXED, "-p", str(pid), "-ex", f"source {GDB_LOADER}", "-ex", "leaks count " + shlex.join(words)]


def by_lldb(pid: int, words: Sequence[str]) -> list[str]:
    loading = ["-O", QUICKLY, "-O", f"command script import {LLDB_LOADER}"]
    return [LLDB, "-x", "--no-use-colors", "-b", *loading, "-p", str(pid), "-o", "leaks count " + shlex.join(words), "-o", "detach"]


DOORS = {"command line": by_command_line, "gdb": by_gdb, "lldb": by_lldb}


def places(pid: int, file: Path, names: Sequence[str], symbols: Path | None = None, *options: str) -> Places:
    """Return the addresses of a file's functions in the process. `symbols`: the file that has its symbols; `options`: options of nm."""
    mappings = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    base = next(int(words[0].split("-")[0], 16) for words in mappings if words[-1] == str(file.resolve()))
    with open(file, "rb") as binary:
        fixed = binary.read(18)[16] == 2  # ET_EXEC
    listed = subprocess.run(["nm", *options, str(symbols or file)], capture_output=True, text=True, check=True).stdout
    rows = (line.split() for line in listed.splitlines())
    return {
        row[2].partition("@")[0]: (0 if fixed else base) + int(row[0], 16)
        for row in rows
        if len(row) == 3 and row[2].partition("@")[0] in names
    }


def code(pid: int, at: Places) -> dict[str, bytes]:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        return {name: os.pread(memory.fileno(), 16, address) for name, address in at.items()}


def until(condition: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    limit = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < limit, f"not within {patience} s: {what}"
        time.sleep(0.02)


def read_stdout(running: Running) -> str:
    return (running.folder / "stdout").read_text()


def check_unharmed(running: Running, at: Places, before: dict[str, bytes]) -> None:
    """Check that no tracer holds the process, that its code is unchanged, and that it still executes the addresses that had breakpoints."""
    assert "TracerPid:\t0\n" in Path(f"/proc/{running.pid}/status").read_text()
    assert code(running.pid, at) == before
    (running.folder / "go").touch()
    until(lambda: "done" in read_stdout(running), "the calls")
    (running.folder / "again").touch()
    until(lambda: "alive" in read_stdout(running), "the process to call it again")


class Working:
    """A counter that has already changed the code of the process. `finish` returns its output."""

    def __init__(self, command: Sequence[str], pid: int, at: Places, before: Mapping[str, bytes]) -> None:
        self._out = open(os.memfd_create("stdout"), "rb")  # noqa: SIM115
        self.process = subprocess.Popen(
            list(command), stdout=self._out, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environment()
        )
        until(lambda: self.process.poll() is not None or code(pid, at) != before, "the breakpoint or jump")

    def printed(self) -> str:
        """Return the output so far."""
        return os.pread(self._out.fileno(), 1 << 30, 0).decode()

    def wait_for_tables(self, number: int) -> None:
        until(lambda: self.process.poll() is not None or len(parse_tables(self.printed())) >= number, f"{number} tables")

    def finish(self) -> str:
        try:
            _, self.error = self.process.communicate(timeout=PATIENCE)
        finally:
            self.process.kill()
        assert self.printed() or self.process.returncode < 0, self.error
        return self.printed()


class Counting(Working):
    """A counter of the function named by the first of `words`; the function already has its breakpoint."""

    def __init__(self, door: Words, words: Sequence[str], running: Running, at: Places) -> None:
        function = {words[0]: at[words[0]]}
        super().__init__(door(running.pid, words), running.pid, function, code(running.pid, function))


def parse_tables(output: str) -> list[dict[str, Any]]:
    """Return the tables whose lines are complete."""
    return [json.loads(line) for line in output.splitlines(keepends=True) if line.startswith('{"schema"') and line.endswith("\n")]


def count_calls(table: dict[str, Any], whole: bool = True, frames: int = 2) -> Counter[str]:
    """Return the number of calls by stack: the function names up to `work`, or the first `frames` names if `work` is not in the stack.
    `whole`: check that all stacks are complete."""
    found: Counter[str] = Counter()
    for stack in table["stacks"]:
        assert stack["complete"] or not whole
        names = [frame["function"] or "" for frame in stack["frames"]]
        if not names[1] or names[1].startswith("checked_jni_"):  # -Xcheck:jni adds these frames
            del names[1]
        found[";".join(names[: names.index("work") + 1 if "work" in names else frames])] += stack["count"]
    return found


def parse_expected(running: Running, column: int) -> Counter[str]:
    """Return the calls that the program reports, by stack. `column`: 1 for all calls, 2 for the calls outside a scope."""
    until(lambda: "done" in read_stdout(running), "the program to say what it did")
    rows = [line.split() for line in read_stdout(running).splitlines() if ";" in line]
    return Counter({row[0]: int(row[column]) for row in rows if row[column] != "0"})
