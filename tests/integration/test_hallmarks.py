"""Objects of known libraries are recognised by their contents, and findleaks does not take other blocks for such objects."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import truth
from building import compile_program
from debuggers import run_cli, run_json

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


@pytest.mark.parametrize("count", [40, 6000], ids=["examined", "sampled"])
def test_mixed_groups(tmp_path: Path, count: int) -> None:
    """Blocks of the same size are one group only if they contain the same object of a library. If they differ in another way, the
    description is only an example. The first blocks of a group never decide alone. If more than 10,000 blocks leaked, some are examined."""
    program = compile_program(tmp_path, "mixed_groups.c", "-O1")
    with Running([str(program), str(count)], tmp_path) as running:
        found = run_json("find", "--kind", "definite", "--pid", str(running.pid))
    rows = {(one["size"], one["contents"]): one["blocks"] for one in found["groups"] if one["size"] in (72, 248)}
    # The engine's groups have blocks of the same size that all have further blocks below them.
    divided = {(72, "regex_t (regcomp)"): 40, (72, "addrinfo (getaddrinfo)"): 40}
    whole = {(72, "e.g. regex_t (regcomp)"): 200}
    assert {row: blocks for row, blocks in rows.items() if row[0] == 72} == (divided if count == 40 else whole)
    assert [(size, blocks) for (size, _), blocks in rows.items() if size == 248] == [(248, 2 * count)]
    assert next(contents for size, contents in rows if size == 248) in ("e.g. → qsort, libc.so.6", "e.g. → lfind, libc.so.6")
