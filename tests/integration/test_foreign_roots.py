"""roots and thread-local variables on true cores of other machines: the programs say what each variable and field holds."""

from __future__ import annotations

import subprocess
from pathlib import Path

import foreign
import foreign_truth
import pytest
import truth
from foreign import Machine, Picture
from rooted import asked, check_c, check_containers, check_maps, said

MACHINES = pytest.mark.parametrize("machine", foreign.MACHINES, ids=[machine.name for machine in foreign.MACHINES])
ELEMENTS = "2000"


def picture(machine: Machine, built: Path, *arguments: str) -> Picture:
    suite = foreign_truth.OLDEST[machine]
    return foreign.picture(machine, foreign.Program(foreign_truth.tree(machine, suite), (f"./{built.name}", *arguments), (built,)))


def where(made: Picture, built: Path) -> tuple[str, ...]:
    return "--sysroot", str(made.root), "--exe", str(built), str(made.core)


def word(machine: Machine) -> int:
    return 4 if machine in (foreign.I386, foreign.ARMHF) else 8


@pytest.mark.matrix
@MACHINES
def test_what_c_programs_keep(machine: Machine, tmp_path: Path) -> None:
    """On RISC-V, compilers describe frames only where they are asked to."""
    flags = ("-O1", "-g", "-fasynchronous-unwind-tables")
    built = foreign_truth.compiled(machine, foreign_truth.OLDEST[machine], truth.PROGRAMS / "roots_c.c", tmp_path / "roots_c", *flags)
    made = picture(machine, built, "1000")
    check_c(said(made.output), asked("--limit", "0", *where(made, built)), word(machine))


@pytest.mark.matrix
@pytest.mark.parametrize("flags", [("-g", "-O1"), ("-O2", "-s")], ids=["debug", "stripped"])
@MACHINES
def test_containers(machine: Machine, flags: tuple[str, ...], tmp_path: Path) -> None:
    compiler, built = machine.compiler.removesuffix("gcc") + "g++", tmp_path / "roots_maps"
    static = ("-static-libstdc++", "-static-libgcc", "-Wno-psabi")
    subprocess.run([compiler, *flags, *static, "-o", str(built), str(truth.PROGRAMS / "roots_maps.cpp"), "-pthread"], check=True)
    made = picture(machine, built, ELEMENTS)
    check = check_maps if word(machine) == 8 else check_containers
    check(said(made.output), "-g" in flags, *where(made, built))
