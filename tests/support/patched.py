"""Programs whose code is patched at run time: a counter that patches them, and the state to check afterwards."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import building
from counts import Places, places, read_stdout, until
from debuggers import PATIENCE, environment

from cores import states

MOVED = {"reads": 18000, "compares": 9000, "stores": 9000, "branches": 18000, "jumps": 9000, "loops": 27000, "carries": 9000}
"""How often the threads execute the first instruction of each function: once per call, but in `loops` once per iteration."""
NAMES = ("event", "faults", "down", *(f"moved_{name}" for name in MOVED))


def build(folder: Path, name: str, *options: str) -> Path:
    return building.compile_program(folder, f"{name}.c", "-O2", "-g", *options, "-pthread")


class Busy(NamedTuple):
    """A program in which three threads continuously call `event`."""

    pid: int
    folder: Path
    at: Places


@contextmanager
def busy(folder: Path) -> Iterator[Busy]:
    """Start the program; it is ended at the end of the `with` block."""
    program = build(folder, "busy")
    with open(folder / "stdout", "wb") as output, subprocess.Popen([str(program), "3", "300"], stdout=output, cwd=folder) as process:
        try:
            until(lambda: "ready" in (folder / "stdout").read_text(), "the program")
            yield Busy(process.pid, folder, places(process.pid, program, NAMES))
        finally:
            process.kill()


def stubs(pid: int) -> list[str]:
    """Return the executable mappings without a file."""
    rows = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return [row[0] for row in rows if row[1] == "r-xp" and len(row) == 5]


def mappings(pid: int) -> int:
    return len(Path(f"/proc/{pid}/maps").read_text().splitlines())


def by_line(pid: int, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "findleaks", "count", *words, "--inject", "--pid", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=PATIENCE)


def text_of(running: Busy) -> bytes:
    """Return the page of code that contains the functions."""
    with open(f"/proc/{running.pid}/mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), 4096, running.at["event"] & -4096)


def runs(running: Any) -> None:
    lines = len(read_stdout(running).splitlines())
    until(lambda: len(read_stdout(running).splitlines()) > lines + 2, "the program to go on")


def get_tracer(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"TracerPid:\t(\d+)", status)[0])


def guardians(debugger: int) -> list[int]:
    """Return the guardian processes that a debugger has started."""
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == debugger and any(word.endswith(b"watchdog.py") for word in words):
            found.append(pid)
    return found


def has_ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}/task").exists() or states(pid) <= {"Z"}
