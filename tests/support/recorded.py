"""The program tests/programs/sites.c, which prints the allocation sites of its blocks, findleaks' results for it, and profiles of heap
profilers."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import debuggers
import truth

import cores

SOURCE = truth.PROGRAMS / "sites.c"
FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-O1")

Stack = tuple[int, ...]
Figures = tuple[int, int, int, int]
"""Blocks and bytes in use, blocks and bytes that were allocated in total."""


@dataclass(frozen=True)
class Made:
    """A block in use: its usable size, "lost" or "held", and the functions that called the allocator, innermost first."""

    address: int
    size: int
    kind: str
    functions: tuple[str, ...]


def parse(output: str) -> list[Made]:
    made = []
    for line in output.splitlines()[:-1]:
        address, size, kind, *functions = line.split()
        made.append(Made(int(address, 16), int(size), kind, tuple(functions)))
    return made


@dataclass(frozen=True)
class Picture:
    """A core of the program, its own list of blocks, and its working folder."""

    core: Path
    made: Sequence[Made]
    folder: Path

    def ask(self, *words: str) -> Any:
        return json.loads(debuggers.run_cli(*words, "--json", str(self.core), check=True).stdout)

    def rows(self, *words: str) -> list[Any]:
        out = debuggers.run_cli("blocks", *words, "--limit", "0", "--json", str(self.core), check=True).stdout
        return [row for row in map(json.loads, out.splitlines()) if "address" in row]

    def text(self, *words: str) -> str:
        return debuggers.run_cli(*words, str(self.core), check=True).stdout


def compile_(output: Path, *extra: str) -> Path:
    subprocess.run(["gcc", *FLAGS, "-o", str(output), str(SOURCE), *extra, "-pthread"], check=True)
    return output


def take(program: Path, folder: Path, threads: int, scale: int, file: str = "account", **environment: str) -> Picture:
    """Run the program, and have the kernel write its core."""
    with cores.Running([str(program), str(threads), str(scale), file], folder, {**os.environ, **environment}) as running:
        return Picture(running.kernel_core(), parse(running.output), folder)


def functions(site: Mapping[str, Any], own: Callable[[Mapping[str, Any]], bool]) -> list[str]:
    """Return the names on the stack, innermost first, without the allocator's own frames."""
    frames = list(site["frames"])
    while frames and own(frames[0]):
        frames.pop(0)
    return [frame["function"] or "" for frame in frames]


def in_library(name: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda frame: bool(frame["module"]) and frame["module"].startswith(name)


def check_every_block(picture: Picture, own: Callable[[Mapping[str, Any]], bool]) -> None:
    """Check that each block has the stack that the program printed, and that lost blocks are grouped by it."""
    listed = {row["site"]["number"]: functions(row["site"], own) for row in picture.ask("caches", "--sites")["sites"]}
    rows = {int(row["address"], 16): row for row in picture.rows()}
    wrong = [
        (made, row and listed.get(row["site"]))
        for made in picture.made
        for row in (rows.get(made.address),)
        if row is None or row["size"] != made.size or tuple(listed.get(row["site"], ())[: len(made.functions)]) != made.functions
    ]
    assert wrong == []
    check_groups(picture, own)


def check_groups(picture: Picture, own: Callable[[Mapping[str, Any]], bool]) -> None:
    """Check that `find --by site` groups the program's lost blocks exactly by the functions that allocated them."""
    expected: Counter[tuple[str, ...]] = Counter()
    for made in picture.made:
        if made.kind == "lost":
            expected[made.functions] += 1
    found: Counter[tuple[str, ...]] = Counter()
    for group in picture.ask("find", "--by", "site", "--kind", "definite")["groups"]:
        names = functions(group["site"], own) if group["site"] else []
        match = [wanted for wanted in expected if tuple(names[: len(wanted)]) == wanted]
        found[match[0] if match else tuple(names)] += group["blocks"]
    assert found == expected


def heap_text(text: str) -> dict[Stack, Figures]:
    """Return a profile in the format of jemalloc (heap_v2) or gperftools: figures by stack."""
    found: dict[Stack, Figures] = {}
    stack: Stack = ()
    for line in text.partition("MAPPED_LIBRARIES")[0].splitlines():
        numbers = re.match(r"\s*(?:t\*:)?\s*(\d+):\s*(\d+) \[\s*(\d+):\s*(\d+)\] ?@?(.*)", line)
        if line.startswith("@"):
            stack = tuple(int(word, 16) for word in line[1:].split())
        elif numbers and line.lstrip().startswith("t*") and stack:
            found[stack] = (int(numbers[1]), int(numbers[2]), int(numbers[3]), int(numbers[4]))
        elif numbers and not line.lstrip().startswith("t"):
            found[tuple(int(word, 16) for word in numbers[5].split())] = (
                int(numbers[1]),
                int(numbers[2]),
                int(numbers[3]),
                int(numbers[4]),
            )
    return found
