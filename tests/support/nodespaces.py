"""Node with objects in every space of its isolates, and V8's own statistics of the spaces (programs/node_spaces.c, node_spaces.js)."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import nodes
import truth

import cores

FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC")
RUNTIME = ("runtime", "--only", "node", "--no-native")


def make_program(folder: Path, version: str, workers: int) -> cores.Running:
    folder.mkdir(exist_ok=True)
    subprocess.run(["gcc", *FLAGS, "-o", folder / "spaces.node", truth.PROGRAMS / "node_spaces.c"], check=True)
    script = shutil.copy(truth.PROGRAMS / "node_spaces.js", folder)
    return cores.Running([nodes.get(version), "--expose-gc", *nodes.STEADY, str(script), str(workers)], folder)


def parse_spaces(output: str) -> dict[str, dict[str, Any]]:
    """Return the statistics that V8 printed, by isolate."""
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {line["isolate"]: line for line in lines}
