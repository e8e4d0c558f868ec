"""The program tests/programs/doors.c for tests of the front ends: its build, its output, and the commands that tests run on it."""

from __future__ import annotations

import json
from pathlib import Path

import building
from debuggers import findleaks, objects

NAMES = ("first", "interior", "general", "vector", "lost", "leader")
Placed = dict[str, str]
"""Address of each block, as in JSON, by the block's name."""
KINDS = {
    "first": "reachable",
    "general": "reachable",
    "vector": "reachable",
    "interior": "possible",
    "lost": "definite",
    "leader": "definite",
}
"""Kind of each block, by its name."""


def build(folder: Path) -> Path:
    """Compile the program into `folder`."""
    return building.compile_program(folder, "doors.c", "-g", "-O1", "-pthread")


def parse_blocks(output: str) -> Placed:
    """Parse the blocks that the program printed."""
    return {line.split()[0]: line.split()[1] for line in output.splitlines() if line.split()[0] in NAMES}


def counts(output: str) -> list[tuple[int, int]]:
    """Return two numbers from each text result of `find`: blocks in use, and blocks that are definitely lost, or
    reachable from a definitely lost block."""
    found: list[tuple[int, int]] = []
    used = 0
    for line in output.splitlines():
        words = line.replace(",", "").split()
        if "blocks in use" in line:
            used = int(words[0])
        elif "leaked: " in line:
            found.append((used, int(words[words.index("in") + 1])))
    return found


def questions(at: Placed) -> list[list[str]]:
    """Return command lines to which every front end gives the same answer."""
    everything = [*at.values(), hex(int(at["first"], 16) + 9), "4096", "0x10", "0x7fffffffffff"]
    return [
        ["find", "--json"],
        ["find", "--by", "type", "--heuristics", "all", "--json"],
        ["blocks", "--json"],
        ["blocks", "--kind", "definite,possible", "--json"],
        ["caches", "--json"],
        ["caches", "--by-arena", "--sort", "memory", "--json"],
        ["whatis", "--json", *everything],
        ["refs", "--json", at["first"]],
        ["path", "--json", at["general"]],
        ["path", "--json", at["vector"]],
        ["path", "--json", at["lost"]],
        ["roots", "--json", "--limit", "0"],
        ["roots", "--json", at["first"]],
        ["roots", "--lost", "--json"],
    ]


def on_core(at: Placed, core: Path, *more: str) -> list[str]:
    """Run the commands on the command line; return all lines of JSON."""
    lines = []
    for words in questions(at):
        lines += objects(findleaks(*words, str(core), *more))
    return lines


def inside(at: Placed) -> list[str]:
    """Return the same commands as typed in a debugger."""
    return ["leaks " + " ".join(words) for words in questions(at)]


def check_truth(lines: list[str], at: Placed) -> None:
    """Check that the blocks are those of the program, with their kinds, that there are no warnings, and that every command was answered."""
    answers = [json.loads(line) for line in lines]
    assert [a["command"] for a in answers if "command" in a][:2] == ["find", "find"]
    assert {a["command"] for a in answers if "command" in a} >= {"find", "caches", "whatis", "refs", "path", "roots"}
    kinds = {a["address"]: a["kind"] for a in answers if "address" in a and "size" in a}
    assert {name: kinds.get(at[name]) for name in KINDS} == KINDS
    assert [a["warnings"] for a in answers if a.get("warnings")] == []
