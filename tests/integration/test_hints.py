"""Hints on the content of a block are the same in both engines, and printable bytes of pointers are not shown as text."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from debuggers import findleaks, gdb, lldb, objects

from cores import Running

SOURCE = Path(__file__).parents[1] / "programs" / "printable_pointers.c"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """Return a core of the program, and the addresses that it prints."""
    folder = tmp_path_factory.mktemp("hints")
    subprocess.run(["gcc", "-g", "-O1", "-o", folder / "program", SOURCE], check=True)
    with Running([str(folder / "program")], folder) as run:
        yield str(run.gcore()), run.output.split()[:3]


def hints(found: Any) -> Iterator[tuple[str, Any]]:
    """Return each hint in a JSON object, with its address or its first example."""
    if isinstance(found, dict):
        if "hint" in found:
            yield str(found.get("address") or found.get("examples")), found["hint"]
        for value in found.values():
            yield from hints(value)
    elif isinstance(found, list):
        for value in found:
            yield from hints(value)


@pytest.mark.parametrize("words", ["blocks", "blocks --kind lost", "find", "whatis NODE", "path NODE", "roots"])
def test_engines_agree(words: str, stopped: tuple[str, list[str]]) -> None:
    core, (held, lost, text) = stopped
    command = [*words.replace("NODE", held).split(), "--json", core]
    said = [findleaks(*command, FINDLEAKS_PURE=pure) for pure in ("", "1")]
    assert said[0] == said[1]
    found = [item for line in said[0].splitlines() for item in hints(json.loads(line))]
    assert not [(address, hint) for address, hint in found if hint and "ZZZ" in hint]
    if words == "blocks":
        by_address = dict(found)
        assert (by_address[held], by_address[lost], by_address[text]) == (None, None, '"a string, which is text"')


def test_in_debuggers(stopped: tuple[str, list[str]]) -> None:
    core, (held, _, text) = stopped
    for address, expected in ((held, None), (text, '"a string, which is text"')):
        for front in (gdb, lldb):
            (found,) = map(json.loads, objects(front([f"leaks whatis {address} --json"], "-c", core)))
            assert [hint for _, hint in hints(found)] == [expected]
