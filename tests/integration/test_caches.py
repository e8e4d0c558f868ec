"""`findleaks caches` on a live process and its core: it counts the blocks that `blocks` lists, and text and JSON have the same figures."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import building
import pytest
from debuggers import run_cli

import cores
from findleaks.formatting import number


def findleaks(*words: str) -> str:
    done = run_cli(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


program = building.fixture("caches_glibc.c", "-O1", "-pthread", name="caches")


@pytest.mark.parametrize("picture", ["live", "kernel"])
def test_counts_equal_those_of_blocks(program: Path, tmp_path: Path, picture: str) -> None:
    with cores.Running([str(program), "3"], tmp_path) as running:
        target = ["--pid", str(running.pid)] if picture == "live" else [str(running.kernel_core())]
        listed = [json.loads(line) for line in findleaks("blocks", "--json", "--state", "all", *target).splitlines()]
        found = json.loads(findleaks("caches", "--json", *target))
        by_arena = json.loads(findleaks("caches", "--by-arena", "--json", *target))
        text = findleaks("caches", *target)
    assert found["warnings"] == []
    states = {"in-use": "in_use", "cached": "cached", "free": "free"}
    counts = Counter(block["state"] for block in listed if block.get("state") in states)
    bytes_ = {state: sum(block["size"] for block in listed if block.get("state") == state) for state in states}
    arenas = Counter((block["arena"], block["state"]) for block in listed if block.get("state") in states)
    (total,) = found["totals"]
    for state, key in states.items():
        assert counts[state] > 10
        for rows in (found["caches"], by_arena["caches"]):
            assert sum(row[key] for row in rows) == counts[state] == total["blocks"][key]
            assert sum(row[f"{key}_bytes"] for row in rows) == bytes_[state] == total[key]
        for arena in {arena for arena, _ in arenas}:
            assert sum(row[key] for row in by_arena["caches"] if row["arena"] == arena) == arenas[arena, state]
    # A small size class has exactly the blocks of its size. Only free blocks may be missing.
    for row in found["caches"]:
        if row["size"]:
            used = sum(block.get("state") == "in-use" and block["size"] == row["size"] for block in listed)
            assert used == row["in_use"]
    lines = text.splitlines()
    (everything,) = [line.split() for line in lines if line.split()[:1] == ["all"]]
    assert everything[1:5] == [number(total["blocks"][key]) for key in ("in_use", "cached", "free", "total")]
    assert len([line for line in lines if line.endswith("%") or "%  ←" in line]) == len(found["caches"]) + 1
