"""Minidumps of AArch64: by LLDB in an emulated machine, and converted from a core, with both forms of register contexts."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import arm64_tests
import foreign
import foreign_truth
import minidumps
import pytest
import truth
from accuracy import FLAGS, SOURCE
from debuggers import run_cli
from elftools.elf.elffile import ELFFile
from foreign import ARM64
from minidumps import Dump, TaskOfArm64

from findleaks.target.core import open_core


def as_minidump(core: Path, flags: int, machine: int) -> Dump:
    """Return a core as a minidump, with its memory, threads, mappings and auxiliary vector."""
    dump, target = Dump(), open_core(str(core))
    try:
        dump.system(machine)
        tasks = []
        for thread in target.threads():
            vectors = [word for word, name in zip(thread.words, thread.names) if name.startswith("v") and name[1:].isdigit()]
            tasks.append(TaskOfArm64(thread.tid, thread.registers, vectors, flags))
        dump.threads(tasks)
        lines = []
        for region in target.regions():
            mode = "".join(letter if on else "-" for letter, on in zip("rwx", (region.readable, region.writable, region.executable)))
            numbers = f"{region.start:x}-{region.end:x} {mode}p {region.file_offset:x} 00:00 0"
            lines.append(f"{numbers} {region.name}\n")
        dump.stream(minidumps.MAPS, "".join(lines).encode())
        dump.stream(minidumps.AUXV, b"".join(struct.pack("<2Q", *pair) for pair in target.auxv.items()))
        dump.stream(minidumps.STATUS, f"Name:\ttruth\nTgid:\t{target.pid}\n".encode())
    finally:
        target.close()
    with core.open("rb") as file:
        loads = [s for s in ELFFile(file).iter_segments("PT_LOAD") if s["p_filesz"]]
        dump.memory64([(load["p_vaddr"], load.data()) for load in loads])
    return dump


@pytest.mark.platform("AArch64", "minidumps")
@pytest.mark.parametrize(("flags", "machine"), [(minidumps.ARM64, 12), (minidumps.ARM64_OLD, 0x8003)], ids=("new form", "old form"))
def test_every_block_of_a_core_as_a_minidump(tmp_path: Path, flags: int, machine: int) -> None:
    """Some blocks are reachable only from registers or vector registers."""
    core, said = foreign_truth.unpack_kept_core("arm64", tmp_path)
    path = tmp_path / "truth.dmp"
    path.write_bytes(as_minidump(core, flags, machine).bytes())
    records = truth.parse(said)
    blocks, warnings = truth.ask(str(path))
    verdict = truth.compare(records, blocks)
    assert verdict.perfect, str(verdict)
    assert verdict.compared > 4000
    (warning,) = (one for one in warnings if "not on this machine" not in one)
    assert warning == "the vector registers beyond 128 bits are unknown: blocks that only these registers refer to are reported as leaked"


@pytest.mark.matrix
def test_lldbs(tmp_path: Path) -> None:
    """A minidump by LLDB has each block and stack of the kernel's core of the same process, which did not run between the two."""
    built = foreign_truth.compile_for_glibc(ARM64, "bookworm", SOURCE, tmp_path / "truth", *FLAGS, "-O1")
    files = built, truth.PROGRAMS / "foreign_minidump.py"
    command = ("/usr/bin/python3", f"./{files[1].name}", "./truth", "5", "6", "1")
    made = foreign.picture(ARM64, foreign.Program(arm64_tests.tree(), command, files, arm64_tests.VARIABLES))
    folder = made.core.parent
    records = truth.parse(made.output)
    for name in ("full.dmp", "process.core"):
        blocks, _ = truth.ask(str(folder / name))
        verdict = truth.compare(records, blocks)
        assert verdict.perfect, str(verdict)
        assert verdict.compared > 4000
    words = ("--json", "--exe", str(built), "--sysroot", str(made.root))
    of_core, *of_dumps = (
        json.loads(run_cli("stacks", *words, str(folder / name), check=True).stdout)["stacks"]
        for name in ("process.core", "full.dmp", "stack.dmp")
    )
    assert all(stack["complete"] for stack in of_core)
    assert [of_core] * 2 == of_dumps
    assert "only `whatis` and `stacks` work" in run_cli("find", str(folder / "stack.dmp")).stderr
