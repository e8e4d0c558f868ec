"""findleaks does not read large debug information unless an option asks for it."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import building
import commandline
import pytest

import cores
from findleaks.debuginfo.type_index import MOST_UNASKED

HEADER = struct.Struct("<IHBBI")
"""Length of a unit without the length field: version, type of the unit, bytes of an address, and offset of the abbreviations (DWARF 5,
7.5.1.1)."""


def enlarge(program: Path, size: int) -> None:
    """Append a unit without entries to the program's debug information, so that it has `size` bytes."""
    section = program.with_suffix(".info")
    subprocess.run(["objcopy", "--dump-section", f".debug_info={section}", program], check=True)
    data = section.read_bytes()
    assert HEADER.unpack_from(data)[1] == 5
    rest = size - len(data)
    section.write_bytes(data + HEADER.pack(rest - 4, 5, 1, 8, 0) + bytes(rest - HEADER.size))
    subprocess.run(["objcopy", "--update-section", f".debug_info={section}", program], check=True)
    section.unlink()


@pytest.mark.parametrize("more", [pytest.param(0, marks=pytest.mark.matrix), 1])
def test_limit(more: int, tmp_path: Path) -> None:
    """64 MiB of debug information are read without an option. If it is one byte larger, it is read only with --debug-types or from the
    cache. The message names the option."""
    program = building.compile_program(tmp_path, "typed_truth.c", "-gdwarf-5", "-O2")
    enlarge(program, MOST_UNASKED + more)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with cores.Running([str(program), "500", "1"], tmp_path / "run") as running:

        def run(*words: str) -> str:
            return " ".join(commandline.run([*words, "--pid", str(running.pid)], environment, merged=True).stdout.split())

        warning = (
            "warning: 64 MiB of debug information of typed_truth were not read, so types of blocks may be missing; "
            "--debug-types reads them (slow only the first time)"
        )
        found = run("find")
        assert ("struct " not in found, warning in found) == (bool(more), bool(more))
        hinted = run("find", "--type", "0x10=struct client")
        assert ("--debug-types reads them" in hinted) == bool(more)
        assert ("findleaks analyses no memory at this address" in hinted) == (not more)
        assert "struct " in run("find", "--debug-types")
        found = run("find")
        assert "struct " in found
        assert "warning: 64 MiB" not in found
