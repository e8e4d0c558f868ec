"""Files, lines and inlined functions of stacks equal those that the program, GDB's backtrace and addr2line print, in all three front
ends."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from debuggers import findleaks, gdb, lldb, objects
from inlined import (
    PROGRAM,
    SOURCE,
    Seen,
    Stopped,
    addr2lines,
    build_and_stop,
    build_id,
    by_command_line,
    by_gdb,
    by_lldb,
    check,
    frames,
    gdbs_own,
    last,
    objcopy,
    own_frames,
    parse_frame,
    plain,
    split,
)
from variants import mark_matrix_except

from cores import Running

BUILDS = {compiler + version: (compiler, version) for compiler in ("g++", "clang++-19") for version in ("-gdwarf-4", "-gdwarf-5")}


@pytest.mark.parametrize("build", mark_matrix_except(BUILDS, "g++-gdwarf-5", "clang++-19-gdwarf-4"))
def test_front_ends_agree_with_the_program(build: tuple[str, str], tmp_path: Path) -> None:
    one = build_and_stop(tmp_path, *build)
    answer = by_command_line(one.program, one.core)
    found = frames(answer)
    check(found, one)
    assert answer["warnings"] == []
    assert gdbs_own(one.program, one.core) == [frame[:3] for frame in found]
    assert addr2lines(one.program, answer) == [(last(frame.function), frame.file, frame.line) for frame in found]
    assert by_gdb(one.program, one.core)["stacks"] == by_lldb(one.program, one.core)["stacks"] == answer["stacks"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    """Build a program with its own debug information."""
    return build_and_stop(tmp_path_factory.mktemp("built"), "g++", "-gdwarf-5")


def in_place(debug: Path, program: Path, folder: Path) -> str:
    """Put a debug file at the path of its build-id in a folder for debug files. Return the folder."""
    found = build_id(program)
    place = folder / ".build-id" / found[:2] / f"{found[2:]}.debug"
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(debug, place)
    return str(folder)


Form = tuple[Path, str]
"""A form of the program: its file, and the folder of debug files, if any."""


def make_compressed(how: str) -> Callable[[Path, Path], Form]:
    def make_form(program: Path, folder: Path) -> Form:
        objcopy(f"--compress-debug-sections={how}", program, folder / PROGRAM)
        return folder / PROGRAM, ""

    return make_form


def by_build_id(program: Path, folder: Path) -> Form:
    stripped, debug = split(program, folder)
    return stripped, in_place(debug, program, folder / "debug")


def make_linked(below: str) -> Callable[[Path, Path], Form]:
    def make_form(program: Path, folder: Path) -> Form:
        stripped, debug = split(program, folder)
        objcopy(f"--add-gnu-debuglink={debug}", stripped)
        (folder / below).mkdir(exist_ok=True)
        shutil.move(debug, folder / below / debug.name)
        return stripped, ""

    return make_form


def dwz(program: Path, folder: Path) -> Form:
    """Move what two files have in common to a third file, to which both refer."""
    whole, other = folder / PROGRAM, folder / "other"
    shutil.copy(program, whole)
    shutil.copy(program, other)
    subprocess.run(["dwz", "-m", folder / "common.debug", "-M", folder / "common.debug", whole, other], check=True)
    return whole, ""


def dwz_alone(program: Path, folder: Path) -> Form:
    subprocess.run(["dwz", "-o", folder / PROGRAM, program], check=True)
    return folder / PROGRAM, ""


FORMS: dict[str, Callable[[Path, Path], Form]] = {
    "zlib": make_compressed("zlib"),
    "zlib-gnu": make_compressed("zlib-gnu"),
    "zstd": make_compressed("zstd"),
    "build-id": by_build_id,
    "debuglink": make_linked(""),
    "debuglink below .debug": make_linked(".debug"),
    "dwz": dwz_alone,
    "dwz with a common file": dwz,
}


@pytest.mark.parametrize("form", mark_matrix_except(FORMS.keys(), "zstd", "build-id", "dwz with a common file"))
def test_forms_of_debug_files(form: str, built: Stopped, tmp_path: Path) -> None:
    """All forms give the same frames. Debug files in a separate folder are tested in the debuggers, where the folder can be set."""
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


def test_split_dwarf_is_reported_as_unread(tmp_path: Path) -> None:
    """GDB and LLDB read .dwo files, so their information is used there."""
    one = build_and_stop(tmp_path, "g++", "-gdwarf-5", "-gsplit-dwarf")
    answer = by_command_line(one.program, one.core)
    (warning,) = answer["warnings"]
    assert warning == "inlined functions of inlined are not shown: debug information in .dwo files (-gsplit-dwarf) is not read"
    assert [(frame.function, frame.inlined) for frame in frames(answer)] == [(name, False) for name in ("wait_here", "outer", "main")]
    check(frames(by_gdb(one.program, one.core)), one)
    by_lldbs_own = by_lldb(one.program, one.core)
    assert by_lldbs_own["warnings"] == []
    assert len(frames(by_lldbs_own)) == len(one.truth) + 1


def test_a_stripped_file_with_compressed_symbols(built: Stopped, tmp_path: Path) -> None:
    """.gnu_debugdata, as in Fedora, has the names of functions but no lines."""
    symbols, packed, program = tmp_path / "symbols", tmp_path / "symbols.xz", tmp_path / PROGRAM
    objcopy("--strip-debug", "-j", ".symtab", "-j", ".strtab", "-j", ".note.gnu.build-id", "--keep-section=.text", built.program, symbols)
    packed.write_bytes(subprocess.run(["xz", "-c", symbols], capture_output=True, check=True).stdout)
    objcopy("--strip-all", f"--add-section=.gnu_debugdata={packed}", built.program, program)
    for answer in (by_command_line(program, built.core), by_gdb(program, built.core), by_lldb(program, built.core)):
        assert frames(answer) == [Seen(name, "", 0, False) for name in ("wait_here", "outer", "main")]


def without_symbols(program: Path, folder: Path) -> Form:
    objcopy("--wildcard", "--strip-symbol=*", program, folder / PROGRAM)
    return folder / PROGRAM, ""


def debug_file_without_symbols(program: Path, folder: Path) -> Form:
    stripped, debug = split(program, folder)
    objcopy("--wildcard", "--strip-symbol=*", debug)
    objcopy(f"--add-gnu-debuglink={debug}", stripped)
    return stripped, ""


@pytest.mark.parametrize("form", [without_symbols, debug_file_without_symbols])
def test_functions_without_symbols_are_named_by_debug_information(
    form: Callable[[Path, Path], Form], built: Stopped, tmp_path: Path
) -> None:
    """Names, places and offsets are the same as with symbols, except for _start. The debug information does not describe _start."""
    program, _ = form(built.program, tmp_path)
    printed = subprocess.run(["nm", program], capture_output=True, text=True)
    assert "main" not in printed.stdout
    (expected,) = by_command_line(built.program, built.core)["stacks"]
    answer = by_command_line(program, built.core)
    (found,) = answer["stacks"]
    known = [frame for frame in expected["frames"] if frame["function"] != "_start"]
    assert len(known) > 6 and [frame for frame in found["frames"] if frame["function"]] == known
    assert by_gdb(program, built.core)["stacks"] == by_lldb(program, built.core)["stacks"] == answer["stacks"]
    outer = next(frame for frame in known if frame["function"] == "outer")
    words = ["whatis", "--json", outer["address"], str(built.core), "--exe"]
    assert findleaks(*words, str(program)) == findleaks(*words, str(built.program))
    assert findleaks("stacks", "-c", "outer", str(built.core), "--exe", str(program)).startswith("1 thread in 1 stack")


def test_a_debug_file_of_another_build_is_not_used(built: Stopped, tmp_path: Path) -> None:
    """findleaks does not use a debug file of another build, neither by its file name nor in the folder of the build-id."""
    stripped, _ = split(built.program, tmp_path)
    (tmp_path / "other").mkdir()
    subprocess.run(["g++", "-O1", "-g", "-o", tmp_path / "other" / PROGRAM, SOURCE], check=True)
    debug = tmp_path / f"{PROGRAM}.debug"
    objcopy("--only-keep-debug", tmp_path / "other" / PROGRAM, debug)
    objcopy(f"--add-gnu-debuglink={debug}", stripped)
    assert not any(frame.line for frame in frames_or_none(by_command_line(stripped, built.core)))
    in_place(debug, stripped, tmp_path / "debug")
    assert not any(frame.line for frame in frames_or_none(by_gdb(stripped, built.core, str(tmp_path / "debug"))))


def frames_or_none(answer: Mapping[str, Any]) -> list[Seen]:
    """Return the frames of the program, including frames without a name."""
    (stack,) = answer["stacks"]
    return [parse_frame({**frame, "function": frame["function"] or "?"}) for frame in stack["frames"] if frame["module"] == PROGRAM]


WITHOUT = "import sys; sys.modules['elftools'] = None"


def test_sources_from_debuggers(built: Stopped) -> None:
    """Without pyelftools, lines and names come from the debugger. They are nearly the same as those that findleaks reads."""
    expected = [frame[1:] for frame in frames(by_command_line(built.program, built.core))]
    asked = "leaks stacks --json"
    for output in (
        gdb([f"python {WITHOUT}", asked], str(built.program), str(built.core)),
        lldb([f"script {WITHOUT}", asked], str(built.program), "-c", str(built.core)),
    ):
        found = json.loads(objects(output)[0])
        assert [frame[1:] for frame in frames(found)] == expected
        assert not any(PROGRAM in warning for warning in found["warnings"])


def test_whatis_says_where_code_is_from(built: Stopped) -> None:
    (stack,) = by_command_line(built.program, built.core)["stacks"]
    place = next(frame for frame in stack["frames"] if frame["function"] == "outer")
    where = hex(int(place["address"], 16) - 1)
    (line,) = objects(findleaks("whatis", "--json", where, str(built.core)))
    (said,) = json.loads(line)["answers"]
    expected = [*built.truth[:-2]]
    assert [(plain(one["function"]), one["line"]) for one in said["source"]["inlined"]] == expected
    assert (Path(said["source"]["file"]), said["source"]["line"]) == (SOURCE, built.truth[-2][1])
    text = findleaks("whatis", where, str(built.core))
    assert f"outer+{place['offset'] - 1:#x} at programs/inlined.cpp:{built.truth[-2][1]}, in stepwise (inlined) at programs/" in text
    for output in (gdb([f"leaks whatis --json {where}"], str(built.program), str(built.core)),):
        assert json.loads(objects(output)[0])["answers"] == [said]


def test_folded_stacks_and_filters_have_inlined_functions(built: Stopped) -> None:
    folded = findleaks("stacks", "--folded", str(built.core)).splitlines()
    (line,) = folded
    assert ";main;outer;stepwise;" in line and ";deep::Parser::feed(int);wait_here;" in line
    assert findleaks("stacks", "-c", "feed", str(built.core)).startswith("1 thread in 1 stack")
    assert findleaks("stacks", "--no-lines", "-c", "feed", str(built.core)).startswith("0 of 1 thread")


@pytest.mark.parametrize("how", mark_matrix_except(["breakpoints", "inject", "lldb"], "inject", "lldb"))
def test_count(how: str, built: Stopped, tmp_path: Path) -> None:
    with Running([str(built.program), "on"], tmp_path) as running:
        words = ["count", "wait_here", "--events", "3", "--json"]
        if how == "lldb":
            output = lldb([f"leaks {' '.join(words)}"], "-p", str(running.pid))
        else:
            output = findleaks(*words, *(["--inject"] if how == "inject" else []), "--pid", str(running.pid))
    found = json.loads(objects(output)[-1])
    assert found["warnings"] == []
    for stack in found["stacks"]:
        top, *rest = own_frames(stack)
        assert top.function == "wait_here"
        assert [(one.function, one.line) for one in rest] == list(built.truth)
        assert [frame.inlined for frame in rest] == [True] * 4 + [False] * 2
