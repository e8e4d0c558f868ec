"""Managed heaps in which any word may be wrong: `runtime` ends in time and without an internal error."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import debuggers
import jvms
import mallocs_python
import nodes
import pytest
import truth

import cores

WORDS = 4000
SEEDS = 6
"""Maximum number of damaged cores. The words that a seed changes depend on the size of the core. If a change makes all types unreadable,
the test continues with the next seed."""


def python(folder: Path) -> AbstractContextManager[cores.Running]:
    one = mallocs_python.get("3.11")
    return cores.Running(one.command(str(truth.PROGRAMS / "cpython_objects.py"), "trace"), folder, one.environment())


def node(folder: Path) -> AbstractContextManager[cores.Running]:
    return cores.Running([nodes.get(nodes.NEWEST), *nodes.STEADY, str(truth.PROGRAMS / "node_holding.js")], folder)


def java(folder: Path) -> AbstractContextManager[cores.Running]:
    folder.mkdir()
    jvms.compile_java(truth.PROGRAMS / "JavaHeap.java", folder, "--release", "17")
    return cores.Running(["java", "-Xmx64m", "-XX:TieredStopAtLevel=1", "-cp", str(folder), "JavaHeap", "1000"], folder)


def list_writable_memory(core: Path) -> list[tuple[int, int]]:
    """Return (offset, size) of the writable memory in a core."""
    with open(core, "rb") as file:
        head = file.read(64)
        offset, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
        file.seek(offset)
        table = [struct.unpack_from("<IIQQQQ", file.read(size)) for _ in range(count)]
    return [(place, length) for kind, flags, place, _, _, length in table if kind == 1 and flags & 2 and length]


def damage(core: Path, seed: int) -> None:
    """Overwrite random words with other words of the core, small numbers, or random values."""
    pick = random.Random(seed)
    parts = list_writable_memory(core)
    sizes = [size for _, size in parts]
    with open(core, "r+b") as file:

        def place() -> int:
            start, size = pick.choices(parts, sizes)[0]
            return start + pick.randrange(max(1, size // 8)) * 8

        for _ in range(WORDS):
            file.seek(place())
            word = pick.choice([file.read(8), struct.pack("<Q", pick.randrange(64)), pick.randbytes(8)])
            file.seek(place())
            file.write(word.ljust(8, b"\0"))


@pytest.mark.parametrize("made", [python, *(pytest.param(made, marks=pytest.mark.matrix) for made in (node, java))])
def test_any_word_may_be_wrong(tmp_path: Path, made: Callable[[Path], AbstractContextManager[cores.Running]]) -> None:
    with made(tmp_path / "run") as running:
        whole = running.kernel_core()
    seen: list[Sequence[Any]] = []
    for seed in range(SEEDS):
        core = tmp_path / f"core{seed}"
        shutil.copyfile(whole, core)
        damage(core, seed)
        output = debuggers.findleaks("runtime", "--json", str(core))
        (line,) = debuggers.objects(output)
        seen.append(json.loads(line)["runtimes"])
        assert "mistake" not in output
        core.unlink()
        if len(seen) >= (1 if made is python else 2) and has_types(seen):
            break
    assert has_types(seen)  # the damage makes only a part of the core unreadable


def has_types(seen: Sequence[Sequence[Any]]) -> bool:
    """Return whether findleaks read types of objects in one of the cores."""
    return any(runtimes and runtimes[0]["types"] for runtimes in seen)
