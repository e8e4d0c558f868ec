"""Files, lines and inlined functions: what a program says its stack is, GDB's backtrace, and binutils' addr2line, from all three doors."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from inlined import (
    PROGRAM,
    Stopped,
    addr2lines,
    build_id,
    by_command_line,
    by_gdb,
    by_lldb,
    check,
    frames,
    gdbs_own,
    last,
    objcopy,
    split,
    stopped,
)

BUILDS = [(compiler, version) for compiler in ("g++", "clang++-19") for version in ("-gdwarf-4", "-gdwarf-5")]


@pytest.mark.parametrize("build", BUILDS, ids=["".join(build) for build in BUILDS])
def test_the_three_doors_see_what_the_program_says(build: tuple[str, str], tmp_path: Path) -> None:
    one = stopped(tmp_path, *build)
    answer = by_command_line(one.program, one.core)
    found = frames(answer)
    check(found, one)
    assert answer["warnings"] == []
    assert gdbs_own(one.program, one.core) == [frame[:3] for frame in found]
    assert addr2lines(one.program, answer) == [(last(frame.function), frame.file, frame.line) for frame in found]
    assert by_gdb(one.program, one.core)["stacks"] == by_lldb(one.program, one.core)["stacks"] == answer["stacks"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    """A program with debug information of its own."""
    return stopped(tmp_path_factory.mktemp("built"), "g++", "-gdwarf-5")


def in_place(debug: Path, program: Path, folder: Path) -> str:
    """Put a debug file where its build-id says, below a folder for debug files, which is returned."""
    found = build_id(program)
    place = folder / ".build-id" / found[:2] / f"{found[2:]}.debug"
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(debug, place)
    return str(folder)


Form = tuple[Path, str]
"""A form of the program: its file, and the folder of debug files, if any."""


def compressed(how: str) -> Callable[[Path, Path], Form]:
    def made(program: Path, folder: Path) -> Form:
        objcopy(f"--compress-debug-sections={how}", program, folder / PROGRAM)
        return folder / PROGRAM, ""

    return made


def by_build_id(program: Path, folder: Path) -> Form:
    stripped, debug = split(program, folder)
    return stripped, in_place(debug, program, folder / "debug")


def linked(below: str) -> Callable[[Path, Path], Form]:
    def made(program: Path, folder: Path) -> Form:
        stripped, debug = split(program, folder)
        objcopy(f"--add-gnu-debuglink={debug}", stripped)
        (folder / below).mkdir(exist_ok=True)
        shutil.move(debug, folder / below / debug.name)
        return stripped, ""

    return made


def dwz(program: Path, folder: Path) -> Form:
    """What two files have in common is in a third, which both refer to."""
    whole, other = folder / PROGRAM, folder / "other"
    shutil.copy(program, whole)
    shutil.copy(program, other)
    subprocess.run(["dwz", "-m", folder / "common.debug", "-M", folder / "common.debug", whole, other], check=True)
    return whole, ""


def dwz_alone(program: Path, folder: Path) -> Form:
    subprocess.run(["dwz", "-o", folder / PROGRAM, program], check=True)
    return folder / PROGRAM, ""


FORMS: dict[str, Callable[[Path, Path], Form]] = {
    "zlib": compressed("zlib"),
    "zlib-gnu": compressed("zlib-gnu"),
    "zstd": compressed("zstd"),
    "build-id": by_build_id,
    "debuglink": linked(""),
    "debuglink below .debug": linked(".debug"),
    "dwz": dwz_alone,
    "dwz with a common file": dwz,
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_debug_files(form: str, built: Stopped, tmp_path: Path) -> None:
    """All give the same frames; those in a folder for debug files in the debuggers, where it can be set."""
    program, folder = FORMS[form](built.program, tmp_path)
    if folder:
        check(frames(by_gdb(program, built.core, folder)), built)
        check(frames(by_lldb(program, built.core, folder)), built)
        return
    answer = by_command_line(program, built.core)
    check(frames(answer), built)
    assert answer["warnings"] == []
    assert gdbs_own(program, built.core) == [frame[:3] for frame in frames(answer)]
    assert by_gdb(program, built.core)["stacks"] == by_lldb(program, built.core)["stacks"] == answer["stacks"]
