"""Helpers for tests of `triage`: cores of a program that leaks blocks in six ways, and the rows that triage prints for them."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from cores import Running

PROGRAMS = Path(__file__).parents[1] / "programs"
WAYS = ("texts", "objects", "records", "cycles", "callbacks", "samples")


class Lost(NamedTuple):
    """A leak head as the program knows it: the way in which it was lost, and the blocks and bytes that are reachable from it, with the head
    itself."""

    way: str
    blocks: int
    bytes: int


class Core(NamedTuple):
    """A core, and all its leak heads by address."""

    path: Path
    truth: dict[int, Lost]


def build(folder: Path, *flags: str, compiler: str = "g++") -> Path:
    """Compile the program, always with the same name."""
    folder.mkdir(parents=True)
    words = [compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", *flags, "-o", folder / "orders", PROGRAMS / "triage_leaks.cpp"]
    subprocess.run(words, check=True)
    return folder / "orders"


def core(program: Path, folder: Path, seed: int, *ways: str) -> Core:
    """Return the kernel's core of a run with random addresses that leaks blocks in these ways; without `ways`, in all ways."""
    with Running(["setarch", os.uname().machine, str(program), str(seed), *ways], folder) as process:
        truth = {}
        for line in process.output.splitlines()[:-1]:
            way, address, blocks, held = line.split()
            truth[int(address, 16)] = Lost(way, int(blocks), int(held))
        return Core(process.kernel_core(), truth)


def parse_rows(output: str) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the rows by core, and the object with the groups."""
    *rows, last = [json.loads(line) for line in output.splitlines()]
    by_core = {row["core"]: row for row in rows}
    assert len(by_core) == len(rows), "a core is there twice"
    return by_core, last


def table(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without the values that differ from run to run."""
    return sorted(({**row, "seconds": 0} for row in rows), key=lambda row: str(row["core"]))


def tables(database: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of a database without the times of examination."""
    with closing(sqlite3.connect(database)) as base:
        names = [name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'triage'")]
        found = {name: sorted(base.execute(f"SELECT * FROM {name}").fetchall(), key=str) for name in names}
    found["cores"] = [(*row[:11], *row[12:]) for row in found["cores"]]
    return found


def group_of(last: dict[str, Any]) -> dict[str, str]:
    """Return the signature of the group for each signature in the rows."""
    found = {own: group["signature"] for group in last["groups"] for own in group["signatures"]}
    assert len(found) == sum(len(group["signatures"]) for group in last["groups"])
    return found


def check_groups(
    rows: dict[str, dict[str, Any]], last: dict[str, Any], cores: Sequence[Core], ways: Sequence[str] = WAYS
) -> dict[str, str]:
    """Check that each way of leaking is one group in all cores, and that no group contains two ways. Return the groups' signatures by
    way."""
    group = group_of(last)
    found: dict[str, set[str]] = {way: set() for way in ways}
    for one in cores:
        row = rows[str(one.path)]
        assert row["status"] == "ok", row
        seen: dict[str, set[str]] = {}
        for leak in row["signatures"]:
            lost = one.truth.get(int(leak["example"], 16))
            assert lost is not None, f"{one.path}: {leak}  is not a leak head"
            found[lost.way].add(group[leak["signature"]])
            seen.setdefault(group[leak["signature"]], set()).add(lost.way)
        assert sorted(way for several in seen.values() for way in several) == sorted({lost.way for lost in one.truth.values()}), one.path
        assert sum(leak["bytes"] for leak in row["signatures"]) == row["lost_bytes"]
        assert sum(leak["blocks"] for leak in row["signatures"]) == row["lost_blocks"]
    assert {way: len(several) for way, several in found.items()} == dict.fromkeys(ways, 1)
    by_way = {way: several.pop() for way, several in found.items()}
    assert len(set(by_way.values())) == len(ways)
    return by_way
