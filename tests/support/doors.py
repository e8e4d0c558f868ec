"""The program tests/programs/doors.c for tests of the front ends: built, running, and what it printed."""

from __future__ import annotations

import subprocess
from pathlib import Path

from debuggers import ROOT

NAMES = ("first", "interior", "general", "vector", "lost", "leader")
Placed = dict[str, str]
"""Name of a block -> its address as JSON has it."""


def build(folder: Path) -> Path:
    """The program, compiled into `folder`."""
    made = folder / "doors"
    subprocess.run(["gcc", "-g", "-O1", "-pthread", "-o", made, ROOT / "tests" / "programs" / "doors.c"], check=True)
    return made


def placed(output: str) -> Placed:
    """The blocks the program named."""
    return {line.split()[0]: line.split()[1] for line in output.splitlines() if line.split()[0] in NAMES}


def counts(output: str) -> list[tuple[int, int]]:
    """Of every text result of `find`: blocks in use, and blocks that hang from a definite one or are one."""
    found: list[tuple[int, int]] = []
    used = 0
    for line in output.splitlines():
        words = line.replace(",", "").split()
        if "blocks in use" in line:
            used = int(words[0])
        elif "lost for sure" in line:
            found.append((used, int(words[words.index("in") + 1])))
    return found
