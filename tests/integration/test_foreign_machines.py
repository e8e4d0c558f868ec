"""Machines beside AArch64 (test_foreign.py): each libc and malloc there, and stacks as GDB unwinds them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import foreign
import foreign_truth
import pytest
import truth
from accuracy import FLAGS, SOURCE
from debuggers import PATIENCE, environment, ran
from foreign import ARM64, MACHINES, Machine

pytestmark = pytest.mark.matrix
MORE = [machine for machine in MACHINES if machine is not ARM64]


def of_each(machines: Sequence[Machine]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("machine", machines, ids=[machine.name for machine in machines])


@of_each(MORE)
def test_glibc(machine: Machine, tmp_path: Path) -> None:
    """Threads, ways to link, and heaps of other shapes, all in one emulated machine."""
    suite, programs = foreign_truth.OLDEST[machine], {}
    built = foreign_truth.compiled(machine, suite, SOURCE, tmp_path / "truth", *FLAGS, "-O1")
    for threads in (1, 5, 33):
        programs[f"{threads} threads"] = foreign_truth.program(machine, suite, built, threads)
    for option in "hbsdtf":
        programs[f"option {option}"] = foreign_truth.program(machine, suite, built, 3, option, 2)
    if machine is not foreign.RISCV64:  # bookworm's linker does not understand the library of a newer one
        static = foreign_truth.compiled(machine, suite, SOURCE, tmp_path / "truth-static", *FLAGS, "-O2", "-static")
        programs["static"] = foreign_truth.program(machine, suite, static, 5)
    foreign_truth.check_all(programs, machine=machine)


@pytest.mark.platform("i386", "musl's mallocng", of="1.2.3")
@pytest.mark.platform("ARM", "musl's mallocng", of="1.2.3")
@pytest.mark.platform("i386", "jemalloc", of="5.3.0")
@pytest.mark.platform("ARM", "jemalloc", of="5.3.0")
@pytest.mark.platform("PowerPC64", "musl's mallocng", of="1.2.3")
@pytest.mark.platform("PowerPC64", "jemalloc", of="5.3.0")
@pytest.mark.platform("s390x", "musl's mallocng", of="1.2.3")
@pytest.mark.platform("s390x", "jemalloc", of="5.3.0")
@pytest.mark.platform("RISC-V", "jemalloc", of="5.3")
@of_each(MORE)
def test_jemalloc_and_musl(machine: Machine, tmp_path: Path) -> None:
    suite = foreign_truth.OLDEST[machine]
    built = foreign_truth.compiled(machine, suite, SOURCE, tmp_path / "truth", *FLAGS, "-O1")
    preloaded = {"LD_PRELOAD": f"/usr/lib/{machine.triplet}/libjemalloc.so.2"}
    programs = {}
    for threads in (5, 33):
        programs[f"jemalloc, {threads} threads"] = foreign_truth.program(machine, suite, built, threads, "a", **preloaded)
    if machine is not foreign.RISCV64:  # bookworm's linker does not understand its newer objects
        linked, static = (foreign_truth.compiled_for_musl(machine, suite, SOURCE, tmp_path / f"musl-{way}", bool(way)) for way in range(2))
        for threads in (5, 33):
            programs[f"musl, {threads} threads"] = foreign_truth.program(machine, suite, linked, threads, "a")
        programs["musl, static"] = foreign_truth.program(machine, suite, static, 5, "a")
    foreign_truth.check_all(programs, machine=machine)


@pytest.mark.platform("i386", "whole stacks")
@pytest.mark.platform("RISC-V", "whole stacks")
@pytest.mark.platform("PowerPC64", "whole stacks", "pages of 64 KiB")
@pytest.mark.platform("s390x", "whole stacks")
@of_each([machine for machine in MORE if machine is not foreign.ARMHF])  # ARM's tables for unwinding are not read
def test_stacks(machine: Machine, tmp_path: Path) -> None:
    """Whole stacks, with a signal's frame and a call to nowhere, each as GDB has it."""
    suite, flags = foreign_truth.OLDEST[machine], ("-O2", "-g", "-fasynchronous-unwind-tables")
    built = foreign_truth.compiled(machine, suite, truth.PROGRAMS / "stacks.c", tmp_path / "stacks", *flags)
    tree = foreign_truth.tree(machine, suite)
    programs = {words: foreign.Program(tree, ("./stacks", *words.split()), (built,)) for words in ("", "crash")}
    for made in foreign.pictures(machine, {words or "waits": one for words, one in programs.items()}).values():
        found = json.loads(ran("stacks", "--json", "--exe", str(built), "--sysroot", str(tree), str(made.core), check=True).stdout)
        assert all(stack["complete"] for stack in found["stacks"])
        mine = {
            thread: [int(frame["address"], 16) for frame in stack["frames"] if not frame.get("inlined")]
            for stack in found["stacks"]
            for thread in stack["threads"]
        }
        theirs = by_gdb(built, tree, made.core)
        assert mine.keys() == theirs.keys()
        for thread, frames in theirs.items():
            assert mine[thread][: len(frames)] == frames
            assert len(mine[thread]) == len(frames) or machine is foreign.RISCV64  # GDB knows nothing of frame pointers there


def by_gdb(program: Path, tree: Path, core: Path) -> dict[int, list[int]]:
    """Each thread's frames: where they continue."""
    words = [
        "gdb-multiarch",
        "-nx",
        "-batch",
        "-ex",
        f"set sysroot {tree}",
        "-ex",
        "set backtrace past-main on",
        "-ex",
        f"file {program}",
        "-ex",
        f"core-file {core}",
    ]
    python = (
        "python\n"
        "for thread in gdb.selected_inferior().threads():\n"
        "    thread.switch()\n"
        "    frame, found = gdb.newest_frame(), []\n"
        "    while frame is not None:\n"
        "        if frame.type() in (gdb.NORMAL_FRAME, gdb.SIGTRAMP_FRAME):\n"
        "            found.append(frame.pc())\n"
        "        frame = frame.older()\n"
        "    print('FRAMES', thread.ptid[1] or thread.ptid[0], *found)\n"
    )
    script = core.parent / "frames.gdb"
    script.write_text(python + "end\n")
    done = subprocess.run([*words, "-x", str(script)], capture_output=True, text=True, timeout=PATIENCE, env=environment())
    rows = [line.split()[1:] for line in done.stdout.splitlines() if re.match("FRAMES ", line)]
    # On PowerPC it shows a caller 0 of the first frame.
    return {int(thread): [int(pc) for at, pc in enumerate(frames) if pc != "0" or not at] for thread, *frames in rows}
