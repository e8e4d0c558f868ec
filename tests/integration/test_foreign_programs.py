"""Cores of other machines, of programs that print the expected results: damage, C++ types, and blocks with headers of the program."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import damage
import foreign
import foreign_truth
import pytest
import truth
from foreign import Machine, Program

from findleaks.block_types import Types
from findleaks.target.core import open_core

MACHINES = pytest.mark.parametrize("machine", foreign.MACHINES, ids=[machine.name for machine in foreign.MACHINES])
DAMAGE = {
    "overrun 1 text used": "text",
    "overrun 8 pointers used": "pointer",
    "overrun 40 text small": "text",
    "overrun 8 text cached": "text",
    "null": "zeros",
    "underrun 8 text": "text",
    "triangle": "link",
    "key": "zeros",
    "uaf 16 text cached": "text",
    "uaf 16 pointers unsorted": "pointer",
    "uaf 16 text fast": "text",
    "uaf 200 text small": "text",
    "top": "pattern",
}
"""By kind of damage: the text that findleaks must report as written."""


@pytest.mark.platform("AArch64, i386, ARM, RISC-V, PowerPC64, s390x", "heap damage, C++ types, headers")
@pytest.mark.matrix
@MACHINES
def test_damage(machine: Machine, tmp_path: Path) -> None:
    suite, built = foreign_truth.OLDEST[machine], tmp_path / "corrupt_glibc"
    foreign_truth.compile_for_glibc(machine, suite, truth.PROGRAMS / "corrupt_glibc.c", built, *damage.FLAGS)
    # On a big-endian machine, a zero after the end of a string changes nothing, because the first byte is the highest one.
    scenarios = [scenario for scenario in DAMAGE if not (scenario == "null" and machine is foreign.S390X)]
    tree = foreign_truth.tree(machine, suite)
    programs = {scenario: Program(tree, (f"./{built.name}", *scenario.split()), (built,)) for scenario in scenarios}
    for scenario, made in foreign.pictures(machine, programs).items():
        damage.check(damage.story(made.output), scenario, DAMAGE[scenario], "--sysroot", str(made.root), str(made.core))


@pytest.mark.platform("AArch64, i386, ARM, RISC-V, PowerPC64, s390x", "heap damage, C++ types, headers")
@pytest.mark.matrix
@MACHINES
def test_headers_of_a_program_s_own(machine: Machine, tmp_path: Path) -> None:
    """The state of each block is correct; see test_headers.py."""
    suite, built = foreign_truth.OLDEST[machine], tmp_path / "headers"
    foreign_truth.compile_for_glibc(machine, suite, truth.PROGRAMS / "headers.c", built, "-O1", "-g", "-std=gnu11")
    tree = foreign_truth.tree(machine, suite)
    foreign_truth.check_all(
        {size: Program(tree, ("./headers", size, "400"), (built,)) for size in ("8", "16", "24", "96")}, machine=machine
    )


@pytest.mark.platform("AArch64, i386, ARM, RISC-V, PowerPC64, s390x", "heap damage, C++ types, headers")
@pytest.mark.matrix
@MACHINES
def test_types(machine: Machine, tmp_path: Path) -> None:
    """Every block has the type that the program prints; see test_types.py."""
    suite, program, library = foreign_truth.OLDEST[machine], tmp_path / "prog", tmp_path / "libshape.so"
    compiler = [machine.compiler.removesuffix("gcc") + "g++", *foreign.ANYWHERE, "-O2", "-static-libstdc++", "-static-libgcc", "-Wno-psabi"]
    subprocess.run([*compiler, "-shared", "-fPIC", truth.PROGRAMS / "types_library.cpp", "-o", library], check=True)
    link = [f"-L{tmp_path}", "-lshape", "-Wl,-rpath,$ORIGIN"]
    subprocess.run([*compiler, truth.PROGRAMS / "types_classes.cpp", "-o", program, *link], check=True)
    made = foreign.picture(machine, Program(foreign_truth.tree(machine, suite), ("./prog",), (program, library)))
    root = tmp_path / "root"
    shutil.copytree(made.root / "lib", root / "lib", symlinks=True)
    (root / "programs" / "program").mkdir(parents=True)
    for file in (program, library):
        shutil.copy(file, root / "programs" / "program")
    types = Types(open_core(str(made.core), sysroot=str(root)))
    blocks = [line.split(" ", 2) for line in made.output.splitlines()[:-1]]
    assert len(blocks) > 25
    assert [types.of_block(int(address, 16), int(size)) for address, size, _ in blocks] == [kind for *_, kind in blocks]
