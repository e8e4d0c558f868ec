"""Machines other than AArch64 (for which see test_foreign.py): each libc and malloc, and stacks. The stacks must equal those that GDB
prints."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import foreign
import foreign_truth
import pytest
import truth
from accuracy import FLAGS, SOURCE
from debuggers import GDB_LOADER, PATIENCE, environment, lldb, objects, run_cli
from foreign import ARM64, MACHINES, Machine
from foreign_runtimes import functions
from mallocs_mimalloc import settle

pytestmark = pytest.mark.matrix
MORE = [machine for machine in MACHINES if machine is not ARM64]


def of_each(machines: Sequence[Machine]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("machine", machines, ids=[machine.name for machine in machines])


@pytest.mark.platform("i386", "glibc, static programs")
@pytest.mark.platform("ARM", "glibc, static programs")
@pytest.mark.platform("RISC-V", "glibc, static programs")
@pytest.mark.platform("PowerPC64", "glibc, static programs")
@pytest.mark.platform("s390x", "glibc, static programs")
@of_each(MORE)
def test_glibc(machine: Machine, tmp_path: Path) -> None:
    """Threads, ways to link, and heaps of other shapes, all in one emulated machine."""
    suite, programs = foreign_truth.OLDEST[machine], {}
    built = foreign_truth.compile_for_glibc(machine, suite, SOURCE, tmp_path / "truth", *FLAGS, "-O1")
    for threads in (1, 5, 33):
        programs[f"{threads} threads"] = foreign_truth.program(machine, suite, built, threads)
    for option in "hbsdtf":
        programs[f"option {option}"] = foreign_truth.program(machine, suite, built, 3, option, 2)
    static = foreign_truth.compile_for_glibc(machine, suite, SOURCE, tmp_path / "truth-static", *FLAGS, "-O2", "-static")
    programs["static"] = foreign_truth.program(machine, suite, static, 5)
    foreign_truth.check_all(programs, machine=machine)


@pytest.mark.platform("i386", "musl's mallocng", of="1.2.3")
@pytest.mark.platform("ARM", "musl's mallocng", of="1.2.3")
@pytest.mark.platform("PowerPC64", "musl's mallocng", of="1.2.3")
@pytest.mark.platform("PowerPC64", "jemalloc", of="5.3.0")
@pytest.mark.platform("s390x", "musl's mallocng", of="1.2.3")
@pytest.mark.platform("s390x", "jemalloc", of="5.3.0")
@pytest.mark.platform("RISC-V", "jemalloc", of="5.3")
@pytest.mark.platform("RISC-V", "musl's mallocng", of="1.2.6")
@of_each(MORE)
def test_jemalloc_and_musl(machine: Machine, tmp_path: Path) -> None:
    suite = foreign_truth.OLDEST[machine]
    built = foreign_truth.compile_for_glibc(machine, suite, SOURCE, tmp_path / "truth", *FLAGS, "-O1")
    preloaded = {"LD_PRELOAD": f"/usr/lib/{machine.triplet}/libjemalloc.so.2"}
    programs = {}
    for threads in (5, 33) if machine not in (foreign.I386, foreign.ARMHF) else ():
        programs[f"jemalloc, {threads} threads"] = foreign_truth.program(machine, suite, built, threads, "a", **preloaded)
    linked, static = (foreign_truth.compiled_for_musl(machine, suite, SOURCE, tmp_path / f"musl-{way}", bool(way)) for way in range(2))
    for threads in (5, 33):
        programs[f"musl, {threads} threads"] = foreign_truth.program(machine, suite, linked, threads, "a")
    programs["musl, static"] = foreign_truth.program(machine, suite, static, 5, "a")
    foreign_truth.check_all(programs, machine=machine)


@pytest.mark.platform("i386", "jemalloc", of="5.2.1 to 5.3.1")
@pytest.mark.platform("ARM", "jemalloc", of="5.2.1 to 5.3.1")
@pytest.mark.parametrize("suite", ["bullseye", "bookworm", "sid"])
@pytest.mark.parametrize("machine", [foreign.I386, foreign.ARMHF], ids=lambda one: one.name)
def test_jemalloc_of_each_release(machine: Machine, suite: str, tmp_path: Path) -> None:
    """On 32-bit machines: pages of 4 KiB on i386, and of 64 KiB on ARM."""
    built = foreign_truth.compile_for_glibc(machine, suite, SOURCE, tmp_path / "truth", *FLAGS, "-O1")
    preloaded = {"LD_PRELOAD": f"/usr/lib/{machine.triplet}/libjemalloc.so.2"}
    threads = {f"jemalloc, {count} threads": foreign_truth.program(machine, suite, built, count, "a", **preloaded) for count in (5, 33)}
    foreign_truth.check_all(threads, machine=machine)


MIMALLOC = {foreign.RISCV64: "libmimalloc.so.3", foreign.PPC64EL: "libmimalloc.so.2"}


@pytest.mark.platform("RISC-V", "gperftools' tcmalloc", of="2.18.1")
@pytest.mark.platform("RISC-V", "mimalloc", of="3.6")
@pytest.mark.platform("PowerPC64", "gperftools' tcmalloc", of="2.10")
@pytest.mark.platform("PowerPC64", "mimalloc", of="2.0.9")
@of_each(list(MIMALLOC))
def test_tcmalloc_and_mimalloc(machine: Machine, tmp_path: Path) -> None:
    suite = foreign_truth.OLDEST[machine]
    built = foreign_truth.compile_for_glibc(machine, suite, SOURCE, tmp_path / "truth", *FLAGS, "-O1")
    for library, settled in (("libtcmalloc_minimal.so.4", None), (MIMALLOC[machine], settle)):
        preloaded = {"LD_PRELOAD": f"/usr/lib/{machine.triplet}/{library}"}
        threads = {
            f"{library}, {count} threads": foreign_truth.program(machine, suite, built, count, "a", **preloaded) for count in (5, 33)
        }
        foreign_truth.check_all(threads, settled, machine)


@pytest.mark.platform("i386", "whole stacks")
@pytest.mark.platform("RISC-V", "whole stacks")
@pytest.mark.platform("PowerPC64", "whole stacks", "pages of 64 KiB")
@pytest.mark.platform("s390x", "whole stacks")
@pytest.mark.platform("ARM", "whole stacks")
@of_each(MORE)
def test_stacks(machine: Machine, tmp_path: Path) -> None:
    """findleaks and GDB print the same complete stacks, including a signal frame and a call to an unmapped address."""
    suite, flags = foreign_truth.OLDEST[machine], ("-O2", "-g", "-fasynchronous-unwind-tables")
    built = foreign_truth.compile_for_glibc(machine, suite, truth.PROGRAMS / "stacks.c", tmp_path / "stacks", *flags)
    check_stacks(machine, foreign_truth.tree(machine, suite), [built])


ARM_CODE = {
    "thumb": ("-mthumb", "-funwind-tables"),
    "arm": ("-marm", "-funwind-tables"),
    "without-tables": ("-fno-unwind-tables", "-fno-asynchronous-unwind-tables"),
    "static": ("-static", "-fno-unwind-tables"),
    "frame-pointers": ("-marm", "-fno-omit-frame-pointer", "-fno-unwind-tables"),
}


@pytest.mark.platform("ARM", "whole stacks")
def test_stacks_of_arms_code(tmp_path: Path) -> None:
    """Stacks through ARM and Thumb code, with and without unwind tables."""
    machine, source = foreign.ARMHF, truth.PROGRAMS / "stacks.c"
    built = [
        foreign_truth.compile_for_glibc(machine, "bookworm", source, tmp_path / name, "-O2", *flags) for name, flags in ARM_CODE.items()
    ]
    check_stacks(machine, foreign_truth.tree(machine, "bookworm"), built)


def test_stacks_of_arm_in_every_front_end(tmp_path: Path) -> None:
    """If the program's files are available, each front end gives the same stacks. In a debugger, findleaks uses the symbols and registers
    of the debugger."""
    machine, tree = foreign.ARMHF, foreign_truth.tree(foreign.ARMHF, "bookworm")
    built = foreign_truth.compile_for_glibc(machine, "bookworm", truth.PROGRAMS / "stacks.c", tmp_path / "thumb", "-O2", *ARM_CODE["thumb"])
    core = foreign.picture(machine, foreign.Program(tree, (f"./{built.name}",), (built,))).core
    command = "leaks stacks --json"
    gdb = ["gdb-multiarch", "-nx", "-batch", "-ex", f"source {GDB_LOADER}", "-ex", f"set sysroot {tree}", "-ex", f"file {built}"]
    done = subprocess.run(
        [*gdb, "-ex", f"core-file {core}", "-ex", command], capture_output=True, text=True, timeout=PATIENCE, env=environment()
    )
    in_lldb = lldb([command], "-O", f"platform select --sysroot {tree} remote-linux", str(built), "-c", str(core))
    expected = frames_by_thread(whole_stacks(built, tree, core))
    assert len(expected) == 9
    for output in (done.stdout, in_lldb):
        assert [frames_by_thread(json.loads(line)["stacks"]) for line in objects(output)] == [expected]


def frames_by_thread(stacks: list[dict[str, Any]]) -> dict[int, list[tuple[str, str]]]:
    named = {tuple(stack["threads"]): [(frame["address"], frame["function"]) for frame in stack["frames"]] for stack in stacks}
    return {thread: frames for threads, frames in named.items() for thread in threads}


THREAD = ["start_thread", ""]  # the last frame is in clone, after the end of its symbol
MAIN = ["main", "__libc_start_call_main", "__libc_start_main", "_start"]


@pytest.mark.platform("ARM", "whole stacks")
def test_stacks_of_arms_threads(tmp_path: Path) -> None:
    """Some threads stop in code without unwind tables, where GDB's stacks end. Other threads use musl, which has no unwind tables."""
    machine = foreign.ARMHF
    tree = foreign_truth.tree(machine, "bookworm")
    built = foreign_truth.compile_for_glibc(machine, "bookworm", SOURCE, tmp_path / "truth", *FLAGS, "-O1")
    source = truth.PROGRAMS / "stacks.c"
    musl = [foreign_truth.compiled_for_musl(machine, "bookworm", source, tmp_path / f"musl-{way}", bool(way)) for way in range(2)]
    programs = {f"{threads} threads": foreign_truth.program(machine, "bookworm", built, threads) for threads in (5, 33)}
    programs.update({file.name: foreign.Program(tree, (f"./{file.name}",), (file,)) for file in musl})
    made = foreign.pictures(machine, programs)
    for threads in (5, 33):
        stacks = whole_stacks(built, tree, made[f"{threads} threads"].core)
        assert sum(stack["count"] for stack in stacks) == threads
        for stack in stacks:
            assert functions(stack)[2:] in (["worker", *THREAD], MAIN)
            assert functions(stack)[:2] == ["stop", "hold"]
    for file in musl:
        stacks = whole_stacks(file, tree, made[file.name].core)
        ways = {tuple(functions(stack)): stack["count"] for stack in stacks}
        begun = {names[names.index("hold") + 1 :]: count for names, count in ways.items() if "hold" in names and "handler" not in names}
        begun = {names[: names.index("start") + 1]: count for names, count in begun.items()}
        assert begun == {
            ("beta", "alpha", "start"): 3,
            ("gamma_", "alpha", "start"): 2,
            (*["down"] * 101, "start"): 1,
            ("by_frame_pointer", "start"): 1,
        }
        (handled,) = (names for names in ways if "handler" in names)
        assert handled[handled.index("raise") :][:3] == ("raise", "faulty", "start")
        (first,) = (names for names in ways if "main" in names)
        assert first[-1] == "_start"


def whole_stacks(program: Path, tree: Path, core: Path) -> list[dict[str, Any]]:
    found = json.loads(run_cli("stacks", "--json", "--exe", str(program), "--sysroot", str(tree), str(core), check=True).stdout)
    assert all(stack["complete"] for stack in found["stacks"])
    stacks: list[dict[str, Any]] = found["stacks"]
    return stacks


def check_stacks(machine: Machine, tree: Path, built: Sequence[Path]) -> None:
    """Check that findleaks and GDB print the same frames for each thread of stacks.c, both while it waits and when it crashes."""
    programs = {
        (file, words): foreign.Program(tree, (f"./{file.name}", *words.split()), (file,)) for file in built for words in ("", "crash")
    }
    made = foreign.pictures(machine, {f"{file.name} {words or 'waits'}": one for (file, words), one in programs.items()})
    for file, words in programs:
        core = made[f"{file.name} {words or 'waits'}"].core
        mine = {
            thread: [int(frame["address"], 16) for frame in stack["frames"] if not frame.get("inlined")]
            for stack in whole_stacks(file, tree, core)
            for thread in stack["threads"]
        }
        theirs = by_gdb(file, tree, core)
        assert mine.keys() == theirs.keys()
        for thread, frames in theirs.items():
            assert mine[thread][: len(frames)] == frames
            assert len(mine[thread]) == len(frames) or machine is foreign.RISCV64  # GDB does not use frame pointers on this machine


def by_gdb(program: Path, tree: Path, core: Path) -> dict[int, list[int]]:
    """Return the return addresses of each thread's frames."""
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
    # On PowerPC, GDB shows a caller at address 0 above the first frame.
    return {int(thread): [int(pc) for at, pc in enumerate(frames) if pc != "0" or not at] for thread, *frames in rows}
