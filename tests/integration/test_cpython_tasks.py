"""The tasks of asyncio that `stacks` lists have the chains of coroutines that the program itself sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import debuggers
import pytest
import truth
from other_pythons import PYTHONS
from variants import mark_matrix_except

import cores

VERSIONS = [one for one in PYTHONS if one != "3.13t"]
"""Objects of free-threaded interpreters have no names."""


def tasks(*where: str) -> dict[int, dict[str, Any]]:
    found = json.loads(debuggers.findleaks("stacks", "--no-lines", "--json", *where))
    assert not [one for one in found["warnings"] if "frames" in one]
    return {number: stack for stack in found["user_stacks"] for number in stack["numbers"]}


@pytest.mark.parametrize("picture", mark_matrix_except(["live", "kernel"], "kernel"))
@pytest.mark.parametrize("version", mark_matrix_except(VERSIONS, "3.11"))
def test_chains_of_coroutines(version: str, picture: str, tmp_path: Path) -> None:
    python = PYTHONS[version]()
    with cores.Running(python.command(str(truth.PROGRAMS / "python_tasks.py")), tmp_path, python.environment()) as one:
        chains = json.loads(one.output.splitlines()[0])
        found = tasks("--pid", str(one.pid)) if picture == "live" else tasks(str(one.kernel_core()))
    assert len(chains) == 12
    for number, chain in chains:
        stack = found[number]
        read = [[frame["file"], frame["line"], frame["function"].rsplit(".", 1)[-1]] for frame in stack["frames"]]
        assert read == chain, number
        assert (stack["kind"], stack["state"]) == ("asyncio task", "pending")
        assert stack["reason"].startswith("waits for ")
    # One ended, and the program's own one is executed.
    assert [one["state"] for number, one in found.items() if number not in dict(chains)] == ["running"]
