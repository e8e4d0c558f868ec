"""Start tracked programs, let them do a round of work while `track` records, and read the expected result."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import building
from counts import parse_tables, until
from debuggers import GDB_LOADER, INDEXED, PATIENCE, environment
from patched import stubs

from findleaks.injection.stub.table import ENABLED

JEMALLOC = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"


def build(folder: Path, name: str = "tracked", *options: str) -> Path:
    return building.compile_program(folder, f"{name}.cpp", "-O2", "-std=c++17", *options, "-pthread")


class Note(NamedTuple):
    """A block that the program allocated."""

    site: str
    fate: str
    address: int
    size: int


class Tracked:
    """A program that does a round of work for each line that it reads."""

    def __init__(self, words: Sequence[str], preload: str = "") -> None:
        variables = {**os.environ, **({"LD_PRELOAD": preload} if preload else {})}
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables)
        self.pid = self.process.pid
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def round(self) -> list[Note]:
        """Let the program do a round, and return what it printed."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found = []
        while (line := self._line()) != "done":
            site, fate, address, size = line.split()
            found.append(Note(site, fate, int(address, 16), int(size)))
        return found

    def end(self) -> int:
        """Close the program's input; return its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None
        return self.process.wait(PATIENCE)


@contextmanager
def start_tracked(words: Sequence[str], preload: str = "") -> Iterator[Tracked]:
    """Start the program; it is killed at the end of the `with` block."""
    made = Tracked(words, preload)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


def by_line(pid: int, *words: str) -> list[str]:
    return [sys.executable, "-m", "findleaks", "track", *words, "--pid", str(pid)]


def by_gdb(pid: int, *words: str) -> list[str]:
    return ["gdb", "-nx", "-batch", *INDEXED, "-p", str(pid), "-ex", f"source {GDB_LOADER}", "-ex", shlex.join(("leaks", "track", *words))]


def recording(command: Sequence[str], pid: int) -> subprocess.Popen[str]:
    """Start `track`, and wait until its stubs are in the process."""
    working = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    until(lambda: is_recording(pid) or working.poll() is not None, "the stubs")
    return working


def is_recording(pid: int) -> bool:
    """Return whether there are stubs that record."""
    for where in stubs(pid):
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            try:
                if os.pread(memory.fileno(), 8, int(where.split("-")[1], 16) + ENABLED)[0] == 1:
                    return True
            except (OSError, IndexError):
                continue
    return False


def read_result(working: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the JSON object that `track` prints. In a debugger, there is more output."""
    output, errors = working.communicate(timeout=PATIENCE)
    assert working.returncode == 0, errors
    (made,) = parse_tables(output)
    return made


def through(report: dict[str, Any], function: str) -> list[dict[str, Any]]:
    """Return the stacks that contain this function."""
    return [one for one in report["stacks"] if any((frame["function"] or "").split("(")[0] == function for frame in one["frames"])]
