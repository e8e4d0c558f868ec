"""Programs that damage a heap and print what they did (tests/programs/corrupt.h), and what `verify` reports about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from debuggers import run_cli

import cores

FLAGS = ("-std=gnu11", "-O1", "-g", "-fno-builtin-malloc", "-fno-builtin-free")


class Story(NamedTuple):
    """What a program printed: the address of the first wrong metadata, its blocks by name, and how many bytes it wrote."""

    damage: int
    blocks: dict[str, int]
    wrote: int


def story(output: str) -> Story:
    blocks, damage, wrote = {}, 0, 0
    for words in (line.split() for line in output.splitlines()):
        if words[0] == "block":
            blocks[words[1]] = int(words[2], 16)
        elif words[0] == "wrote":
            wrote = int(words[2])
        elif words[0] == "damage" and words[1] != "none":
            damage = int(words[1], 16)
    return Story(damage, blocks, wrote)


def ask(*words: str) -> tuple[dict[str, Any], int]:
    """Return the output of `verify --json`, and its exit status."""
    done = run_cli("verify", "--json", *words)
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.returncode


def look(running: cores.Running, picture: str) -> tuple[dict[str, Any], int]:
    """Run `ask` on a running program ("live"), or on its core ("kernel"). The core is removed afterwards."""
    if picture == "live":
        return ask("--pid", str(running.pid))
    core: Path = running.kernel_core()
    reported = ask(str(core))
    core.unlink()
    return reported


def check(said: Story, scenario: str, what: str, *target: str) -> None:
    """Check that the first problem is the damage, with its address, its neighbours and its description. `what`: the bytes that were
    written."""
    reported, status = ask(*target)
    assert status == 1, reported
    assert reported["sound"] is False
    damage = [problem for problem in reported["problems"] if problem["corrupt"]]
    first = damage[0]
    place = int(first["damaged"]["address"], 16)
    assert said.damage <= place < said.damage + 8, (hex(said.damage), reported["problems"])
    if first["written"] is not None:
        assert first["written"]["is"] in (what, "pointer") or scenario in ("double", "triangle"), first
    neighbours = first["neighbours"]
    if "before" in said.blocks and neighbours["at"] is None:
        assert int(neighbours["before"]["address"], 16) == said.blocks["before"], first
        assert first["past_end"] is not None and 0 <= first["past_end"] <= 8  # glibc 2.43 leaves one word of an mmapped block unused
        if scenario.startswith("overrun"):
            assert 0 < first["overrun"] <= said.wrote
            assert f"{said.blocks['before']:#x} was written past its end" in first["cause"]
    if scenario.startswith("uaf"):
        assert int(neighbours["at"]["address"], 16) == said.blocks["victim"]
        assert "after it was freed" in first["cause"]
