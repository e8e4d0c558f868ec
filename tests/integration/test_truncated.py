"""A truncated core that lacks libc's variables: the blocks of glibc's heaps are the same as in the whole core."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import accuracy
import commandline
import pytest
import truth
from elftools.elf.elffile import ELFFile

import cores


def end_before_data_of_libc(core: Path) -> int:
    """Return the offset in the core's file at which the variables of libc begin."""
    with core.open("rb") as file:
        image = ELFFile(file)
        notes = [note for part in image.iter_segments("PT_NOTE") for note in part.iter_notes()]
        (files,) = (note.n_desc for note in notes if note.n_type == "NT_FILE")
        libc = [mapped for mapped, name in zip(files.Elf_Nt_File_Entry, files.filename) if os.path.basename(name).startswith(b"libc.so")]
        starts = {mapped.vm_start for mapped in libc}
        return min(part["p_offset"] for part in image.iter_segments("PT_LOAD") if part["p_flags"] & 2 and part["p_vaddr"] in starts)


def list_blocks_of_arenas(blocks: list[dict[str, Any]]) -> dict[int, tuple[int, str]]:
    """Return the size and state of each block by its address, without blocks that have their own mapping: if mp_ is missing, the number of
    such blocks is unknown."""
    return {int(block["address"], 16): (block["size"], block["state"]) for block in blocks if block["arena"] != "mmapped"}


@pytest.mark.parametrize("options", ["", "b"], ids=["contiguous", "break blocked"])
def test_heaps_without_main_arena(options: str, tmp_path: Path) -> None:
    """The program's blocks, of the main arena and of thread arenas, are the same as in the whole core. The only exception: free blocks in
    fastbins of the main arena count as in use."""
    program = tmp_path / "truth"
    subprocess.run(["gcc", *accuracy.FLAGS, "-o", str(program), str(accuracy.SOURCE), "-pthread"], check=True)
    with cores.Running([str(program), "3", "5", "2", options], tmp_path) as running:
        records = truth.parse(running.output)
        core = running.kernel_core()
    blocks, _ = truth.ask(str(core))
    end = end_before_data_of_libc(core)
    os.truncate(core, end)
    left, warnings = truth.ask(str(core))
    assert any("main_arena is in the missing part of the core" in warning for warning in warnings)
    found, whole = map(list_blocks_of_arenas, (left, blocks))
    assert not whole.keys() - found.keys()
    assert len(found.keys() - whole.keys()) <= (options == "b"), "only the top may count as a block, if another heap directly follows it"
    differ = [address for address, one in whole.items() if one != found[address]]
    assert all(whole[address][1] == "free" and found[address] == (whole[address][0], "in-use") for address in differ)
    used = [record for record in records if record.state == "in-use"]
    assert len(used) > 500
    assert all(found[record.address][1] == "in-use" for record in used if record.address in whole)
    text = commandline.run(["verdict", "--json", str(core)], {}).stdout
    first = json.loads(text)["findings"][0]
    assert first["finding"] == "truncated-core" and "libc.so.6" in first["cause"]
