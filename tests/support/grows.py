"""The program tests/programs/grows.c: built, run, made to grow, and what it printed."""

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
"""Bytes of a node as malloc_usable_size has them, and of a lost block."""
FINDLEAKS = [sys.executable, "-m", "findleaks"]


def build(folder: Path) -> Path:
    return building.compiled(folder, "grows.c", "-g", "-O1")


def truth(running: Running) -> tuple[int, int]:
    """Nodes in the list, and lost blocks."""
    return counts((running.folder / "stdout").read_text())


def counts(output: str) -> tuple[int, int]:
    """The same, of what the program printed up to now."""
    nodes, lost = re.findall(r"round \d+: (\d+) nodes, (\d+) lost", output)[-1]
    return int(nodes), int(lost)


def go_on(running: Running, number: signal.Signals = signal.SIGUSR1) -> None:
    """A further round, or (SIGUSR2) an exec, done when this returns."""
    said = running.folder / "stdout"
    before = said.read_text().count("ready\n")
    os.kill(running.pid, number)
    limit = time.monotonic() + PATIENCE
    while said.read_text().count("ready\n") == before or not all_sleep(running.pid):
        if time.monotonic() > limit:
            raise RuntimeError(f"{running.folder}: not ready again")
        time.sleep(0.01)
