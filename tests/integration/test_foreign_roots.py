"""roots and thread-local variables in cores of other machines. The programs print the number of bytes that each variable and field
retains."""

from __future__ import annotations

import subprocess
from pathlib import Path

import foreign
import foreign_truth
import pytest
import truth
from accuracy import FLAGS, SOURCE
from foreign import Machine, Picture
from rooted import check_c, check_containers, check_maps, parse_output, run_roots

from findleaks.allocators.jemalloc.instance import Jemalloc
from findleaks.libc.thread_local import thread_local_blocks
from findleaks.session import Session
from findleaks.target.core import open_core

MACHINES = pytest.mark.parametrize("machine", foreign.MACHINES, ids=[machine.name for machine in foreign.MACHINES])
ELEMENTS = "2000"


def picture(machine: Machine, built: Path, *arguments: str) -> Picture:
    suite = foreign_truth.OLDEST[machine]
    return foreign.picture(machine, foreign.Program(foreign_truth.tree(machine, suite), (f"./{built.name}", *arguments), (built,)))


def where(made: Picture, built: Path) -> tuple[str, ...]:
    return "--sysroot", str(made.root), "--exe", str(built), str(made.core)


def word(machine: Machine) -> int:
    return 4 if machine in (foreign.I386, foreign.ARMHF) else 8


HIGH = ("-no-pie", "-Wl,-Ttext-segment=0x90000000")
"""On 32-bit machines, a heap at the usual address begins a few MiB above zero, and many numbers look like pointers into it. For example,
one of libc's tunables looked like a pointer to the Profiler."""


@pytest.mark.platform("AArch64, i386, ARM, RISC-V, PowerPC64, s390x", "variables, containers and their owners")
@pytest.mark.matrix
@MACHINES
def test_what_c_programs_keep(machine: Machine, tmp_path: Path) -> None:
    """On RISC-V, compilers write frame descriptions only on request."""
    flags = ("-O1", "-g", "-fasynchronous-unwind-tables")
    built = foreign_truth.compile_for_glibc(
        machine, foreign_truth.OLDEST[machine], truth.PROGRAMS / "roots_c.c", tmp_path / "roots_c", *flags
    )
    made = picture(machine, built, "1000")
    check_c(parse_output(made.output), run_roots("--limit", "0", *where(made, built)), word(machine))


@pytest.mark.platform("AArch64, i386, ARM, RISC-V, PowerPC64, s390x", "variables, containers and their owners")
@pytest.mark.matrix
@pytest.mark.parametrize("flags", [("-g", "-O1"), ("-O2", "-s")], ids=["debug", "stripped"])
@MACHINES
def test_containers(machine: Machine, flags: tuple[str, ...], tmp_path: Path) -> None:
    compiler, built = machine.compiler.removesuffix("gcc") + "g++", tmp_path / "roots_maps"
    static = ("-static-libstdc++", "-static-libgcc", "-Wno-psabi")
    narrow = word(machine) == 4
    place = HIGH if narrow else ()
    subprocess.run(
        [compiler, *foreign.ANYWHERE, *flags, *static, *place, "-o", str(built), str(truth.PROGRAMS / "roots_maps.cpp"), "-pthread"],
        check=True,
    )
    made = picture(machine, built, ELEMENTS)
    check = check_containers if narrow else check_maps
    check(parse_output(made.output), "-g" in flags, *where(made, built))


@pytest.mark.matrix
@MACHINES
def test_thread_caches_of_jemalloc(machine: Machine, tmp_path: Path) -> None:
    """A thread cache belongs to the thread whose thread-local variables of jemalloc include it, according to ld.so's list of files."""
    suite = foreign_truth.OLDEST[machine]
    built = foreign_truth.compile_for_glibc(machine, suite, SOURCE, tmp_path / "truth", *FLAGS, "-O1", "-s")
    library = f"/usr/lib/{machine.triplet}/libjemalloc.so.2"
    made = foreign.picture(machine, foreign_truth.program(machine, suite, built, 5, "a", LD_PRELOAD=library))
    session = Session(open_core(str(made.core), sysroot=str(made.root)))
    (jemalloc,) = (one for one in session.directory.allocators if isinstance(one, Jemalloc))
    blocks = [block for block in thread_local_blocks(session.target) if "jemalloc" in block.module.path]
    owners = {cache.address: [block.thread for block in blocks if cache.address in range(*block.range)] for cache in jemalloc.caches_found}
    assert [[cache.tid] for cache in jemalloc.caches_found] == list(owners.values())
    assert sorted(cache.tid for cache in jemalloc.caches_found) == sorted(thread.tid for thread in session.target.threads())
