"""Containers of programs with debug information: declared types take precedence over types guessed from memory."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import truth
from debuggers import run_cli

import cores

DECLARED = {
    "g_array": ("array of session", "elements"),
    "g_pointers": ("array of pointers", "pointers"),
    "g_inside": ("array of pointers", "pointers"),
    "g_buckets": ("hash table", "nodes"),
    "g_shared": ("std::vector of shared_ptr<session>", "elements"),
    "g_weak": ("std::vector of weak_ptr<session>", "elements"),
    "g_orders": ("std::vector of Order", "elements"),
}
SMART = ("g_shared", "g_weak")


def containers(core: Path) -> dict[str, tuple[str, str, int]]:
    """Return for each variable its container, what is counted, and the number."""
    rows: list[dict[str, Any]] = json.loads(run_cli("roots", "--json", "--limit", "0", str(core), check=True).stdout)["roots"]
    found = {}
    for row in rows:
        container = row["container"] or next((child["container"] for child in row["children"]), None)
        if row["name"].startswith("g_") and container:
            found[row["name"].split(" ")[0]] = (container["what"], container["unit"], container["length"])
    return found


def test_declared_types_win(tmp_path: Path) -> None:
    program = tmp_path / "declared"
    words = [
        "g++",
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-O1",
        "-g",
        "-o",
        str(program),
        str(truth.PROGRAMS / "roots_declared.cpp"),
    ]
    subprocess.run(words, check=True)
    with cores.Running([str(program)], tmp_path / "run") as running:
        counts = {name: int(count) for name, count in (line.split() for line in running.output.splitlines() if line.startswith("g_"))}
        core = running.gcore()
    assert containers(core) == {name: (*what, counts[name]) for name, what in DECLARED.items()}
    subprocess.run(["strip", "-g", str(program)], check=True)  # the core contains no debug information
    plain = containers(core)
    assert {plain[name] for name in SMART} == {("std::vector of shared_ptr or weak_ptr", "elements", counts[name]) for name in SMART}
    assert plain["g_buckets"] == ("hash table", "nodes", 192)
