"""The program tests/programs/grows.c: compile it, let it grow, and parse its output."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import building
from debuggers import PATIENCE

from cores import Running, all_sleep

NODE, LOST = 120, 40
"""Usable sizes in bytes (malloc_usable_size) of a node, and of a lost block."""
FINDLEAKS = [sys.executable, "-m", "findleaks"]


def build(folder: Path) -> Path:
    return building.compile_program(folder, "grows.c", "-g", "-O1")


def truth(running: Running) -> tuple[int, int]:
    """Return the number of nodes in the list, and of lost blocks."""
    return counts((running.folder / "stdout").read_text())


def counts(output: str) -> tuple[int, int]:
    """Return the same numbers, from the program's output so far."""
    nodes, lost = re.findall(r"round \d+: (\d+) nodes, (\d+) lost", output)[-1]
    return int(nodes), int(lost)


def go_on(running: Running, number: signal.Signals = signal.SIGUSR1) -> None:
    """Let the program do a further round, or an exec (SIGUSR2); return when it is complete."""
    said = running.folder / "stdout"
    before = said.read_text().count("ready\n")
    os.kill(running.pid, number)
    limit = time.monotonic() + PATIENCE
    while said.read_text().count("ready\n") == before or not all_sleep(running.pid):
        if time.monotonic() > limit:
            raise RuntimeError(f"{running.folder}: not ready again")
        time.sleep(0.01)
