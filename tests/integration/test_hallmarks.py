"""Objects of known libraries are recognised by their contents, and findleaks does not take other blocks for such objects."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import truth
from debuggers import run_cli

import findleaks
from cores import Running


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    command = ["/usr/bin/python3", str(truth.PROGRAMS / "library_objects.py")]
    with Running(command, tmp_path_factory.mktemp("objects"), {"PYTHONMALLOC": "malloc", "PATH": os.environ["PATH"]}) as running:
        yield running


def list_objects(process: Running) -> dict[int, str]:
    """Return the names of the objects by address."""
    lines = [line.rpartition(" ") for line in process.output.splitlines()]
    return {int(address, 16): name for name, _, address in lines if address.startswith("0x")}


def test_each_object_is_named(process: Running) -> None:
    objects = list_objects(process)
    assert len(objects) > 25
    done = run_cli("whatis", "--json", *map(hex, objects), "--pid", str(process.pid))
    found = {int(one["address"], 16): one.get("contents") for one in json.loads(done.stdout)["answers"]}
    assert found == objects


def test_nothing_else_is_named(process: Running) -> None:
    objects = list_objects(process)
    with findleaks.attach(process.pid) as process_of:
        session = process_of._session
        contents, blocks = session.types.contents, session.directory.blocks
        named = {blocks.address(at): contents.name_object(blocks.address(at), blocks.size(at)) for at in range(len(blocks))}
    others = {name for address, name in named.items() if name and not any(address <= known < address + 16 for known in objects)}
    assert len(named) > 10_000
    # ld.so's list has one entry for each file, GLib allocates objects, and the objects of this test have parts.
    others = {name for name in others if not name.startswith("ld.so's entry") and not re.fullmatch(r"GLib object \(G[A-Za-z]+\)", name)}
    assert others <= {"SQLite connection", "libstdc++'s emergency pool for exceptions"} | set(objects.values())


def test_own_rules(process: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = next(at for at, name in list_objects(process).items() if name == "curl easy handle")
    rules = tmp_path / "objects"
    rules.write_text("# mine\nour handle: u32 0 = 0xc0dedbad; size = 100..\n")
    monkeypatch.setenv("FINDLEAKS_OBJECTS", str(rules))
    assert "our handle" in run_cli("whatis", hex(address), "--pid", str(process.pid)).stdout
    rules.write_text("our handle: u33 0 = 1\n")
    done = run_cli("whatis", hex(address), "--pid", str(process.pid))
    assert done.returncode == 2
    assert done.stderr.startswith("findleaks: ") and f"{rules}:1: 'our handle: u33 0 = 1' is not a rule" in done.stderr
