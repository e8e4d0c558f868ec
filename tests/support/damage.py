"""What programs that damage a heap say they did (tests/programs/corrupt.h), and what `verify` says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from debuggers import ran

import cores

FLAGS = ("-std=gnu11", "-O1", "-g", "-fno-builtin-malloc", "-fno-builtin-free")


class Story(NamedTuple):
    """What a program says it did: where the first metadata is wrong, its blocks by name, and how many bytes it wrote."""

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
    """What `verify --json` says, and its exit status."""
    done = ran("verify", "--json", *words)
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.returncode


def look(running: cores.Running, picture: str) -> tuple[dict[str, Any], int]:
    """`ask` of a program that runs ("live"), or of its core ("kernel"), which is gone afterwards."""
    if picture == "live":
        return ask("--pid", str(running.pid))
    core: Path = running.kernel_core()
    reported = ask(str(core))
    core.unlink()
    return reported
