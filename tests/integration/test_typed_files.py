"""Neither the form of the debug information nor the size of a word changes the types of blocks: split DWARF, type units, supplementary
files of dwz, and programs for i386."""

from __future__ import annotations

from pathlib import Path

import pytest
from typed_programs import COMPILERS, check, measure

SEPARATE = ("objcopy --only-keep-debug typed_truth typed_truth.debug",)
STRIPPED = ("strip --strip-unneeded typed_truth", "objcopy --add-gnu-debuglink=typed_truth.debug typed_truth")
SHARED = ("cp typed_truth.debug other.debug", "dwz -m common.dwz -M common.dwz typed_truth.debug other.debug")
PACK, REMOVE = "-e typed_truth -o typed_truth.dwp", "find . -name *.dwo -delete"


@pytest.mark.parametrize(
    ("flags", "commands"),
    [
        pytest.param("", (*SEPARATE, *SHARED, *STRIPPED), id="dwz"),  # as in Debian's -dbgsym packages
        pytest.param("-gsplit-dwarf -fdebug-types-section", (*SEPARATE, *STRIPPED), id="dwo"),
        pytest.param("-gsplit-dwarf -gdwarf-4", (f"dwp {PACK}", REMOVE), marks=pytest.mark.matrix, id="dwp"),
        pytest.param("-gdwarf-4 -fdebug-types-section", (), marks=pytest.mark.matrix, id="types"),
    ],
)
def test_forms_of_debug_information(flags: str, commands: tuple[str, ...], tmp_path: Path) -> None:
    figures = measure("typed_truth.c", tmp_path, 1_000, 1, "-O2", *flags.split(), commands=commands)
    check(figures)
    assert figures.part(figures.held, "sure right") > 0.5, figures.held


@pytest.mark.matrix
def test_package_of_dwarf_5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Types are read from the package that llvm-dwp makes of the .dwo files of clang."""
    monkeypatch.setitem(COMPILERS, ".c", "clang-19")
    check(measure("typed_truth.c", tmp_path, 1_000, 1, "-O2", "-gsplit-dwarf", "-gdwarf-5", commands=(f"llvm-dwp {PACK}", REMOVE)))


def test_32_bits(tmp_path: Path) -> None:
    """Sizes of glibc's chunks for i386 are 16 bytes apart, as in 64-bit programs. Otherwise, circles would be shapes."""
    figures = measure("typed_truth.c", tmp_path, 3_000, 1, "-O2", triplet="i686-linux-gnu-")
    check(figures)
    assert len(figures.wrong) <= 5, figures.wrong
    assert figures.part(figures.held, "sure right") > 0.5, figures.held
