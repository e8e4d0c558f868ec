"""The program tests/programs/doors.c for tests of the front ends: built, what it printed, and what to ask of it."""

from __future__ import annotations

import json
from pathlib import Path

import building
from debuggers import findleaks, objects

NAMES = ("first", "interior", "general", "vector", "lost", "leader")
Placed = dict[str, str]
"""Name of a block -> its address as JSON has it."""
KINDS = {
    "first": "reachable",
    "general": "reachable",
    "vector": "reachable",
    "interior": "possible",
    "lost": "definite",
    "leader": "definite",
}
"""Name of a block -> what it is."""


def build(folder: Path) -> Path:
    """The program, compiled into `folder`."""
    return building.compiled(folder, "doors.c", "-g", "-O1", "-pthread")


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
        elif "leaked: " in line:
            found.append((used, int(words[words.index("in") + 1])))
    return found


def questions(at: Placed) -> list[list[str]]:
    """Command lines that every door answers alike."""
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
    """What the command line answers, all lines of JSON."""
    lines = []
    for words in questions(at):
        lines += objects(findleaks(*words, str(core), *more))
    return lines


def inside(at: Placed) -> list[str]:
    """The same, as typed in a debugger."""
    return ["leaks " + " ".join(words) for words in questions(at)]


def check_truth(lines: list[str], at: Placed) -> None:
    """These are the program's blocks, in their kinds, nothing is doubtful, and every question was answered."""
    answers = [json.loads(line) for line in lines]
    assert [a["command"] for a in answers if "command" in a][:2] == ["find", "find"]
    assert {a["command"] for a in answers if "command" in a} >= {"find", "caches", "whatis", "refs", "path", "roots"}
    kinds = {a["address"]: a["kind"] for a in answers if "address" in a and "size" in a}
    assert {name: kinds.get(at[name]) for name in KINDS} == KINDS
    assert [a["warnings"] for a in answers if a.get("warnings")] == []
