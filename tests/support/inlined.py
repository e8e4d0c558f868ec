"""The program tests/programs/inlined.cpp: its builds, the stack that it prints, and this stack as findleaks, GDB and binutils report it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import truth
from debuggers import REWRITTEN, environment, findleaks, gdb, lldb, objects

from cores import Running

SOURCE = truth.PROGRAMS / "inlined.cpp"
PROGRAM = "inlined"


class Seen(NamedTuple):
    """A frame: the function without parameters, the file's base name, the line, and whether it is inlined."""

    function: str
    file: str
    line: int
    inlined: bool


@dataclass(frozen=True)
class Stopped:
    """A build, its core at the stop, and the stack that it printed, innermost first: name and line."""

    program: Path
    core: Path
    truth: Sequence[tuple[str, int]]


def build_and_stop(folder: Path, *options: str) -> Stopped:
    """Compile the program with these words (the first is the compiler), and write a core of it."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / PROGRAM
    subprocess.run([*options, "-O2", "-o", program, SOURCE], check=True, cwd=folder)
    with Running([str(program)], folder / "run") as running:
        core = running.gcore()
        printed = [line.split() for line in running.output.splitlines() if line.startswith("frame ")]
    return Stopped(program, core, [(name, int(line)) for _, name, line in printed])


def plain(function: str) -> str:
    """Return a function's name in a form that all demanglers agree on: without results, parameters and template arguments, and with the
    same name for all lambdas."""
    if "lambda" in function or "$_0" in function or "operator()" in function:
        return "lambda"
    return re.sub(r"<[^<>]*>", "", function.split("(")[0]).split(" ")[-1]


def frames(answer: Mapping[str, Any]) -> list[Seen]:
    """Return the program's own frames of the only stack of `stacks --json`, from wait_here to main."""
    (stack,) = answer["stacks"]
    return own_frames(stack)


def own_frames(stack: Mapping[str, Any]) -> list[Seen]:
    """Return the program's own frames of a stack in JSON."""
    return [parse_frame(frame) for frame in stack["frames"] if frame["module"] == PROGRAM and frame["function"] != "_start"]


def parse_frame(frame: Mapping[str, Any]) -> Seen:
    return Seen(plain(frame["function"]), Path(frame.get("file", "")).name, frame.get("line") or 0, frame.get("inlined", False))


def by_command_line(program: Path, core: Path, *words: str) -> dict[str, Any]:
    (line,) = objects(findleaks("stacks", "--json", str(core), "--exe", str(program), *words))
    made: dict[str, Any] = json.loads(line)
    return made


def by_gdb(program: Path, core: Path, folder: str = "") -> dict[str, Any]:
    """Return the frames that findleaks prints in GDB. `folder`: GDB's folder for debug files."""
    before = ("-iex", f"set debug-file-directory {folder}") if folder else ()
    (line,) = objects(gdb(["leaks stacks --json"], *REWRITTEN, *before, str(program), str(core)))
    made: dict[str, Any] = json.loads(line)
    return made


def by_lldb(program: Path, core: Path, folder: str = "") -> dict[str, Any]:
    """Return the frames that findleaks prints in LLDB. `folder`: LLDB's folder for debug files."""
    before = ("-O", f"settings append target.debug-file-search-paths {folder}") if folder else ()
    (line,) = objects(lldb(["leaks stacks --json"], *before, str(program), "-c", str(core)))
    made: dict[str, Any] = json.loads(line)
    return made


def gdbs_own(program: Path, core: Path, folder: str = "") -> list[tuple[str, str, int]]:
    """Return GDB's backtrace from wait_here to main: function, file, line."""
    words = ["gdb", "-nx", "-batch", "-iex", f"set debug-file-directory {folder or '/nonexistent'}", "-ex", "bt", str(program), str(core)]
    printed = subprocess.run(words, capture_output=True, text=True, check=True, env=environment()).stdout
    rows = re.findall(r"^#\d+\s+(?:0x[0-9a-f]+ in )?(.+?) \(.*?\) at (\S+):(\d+)$", printed, re.M)
    return [(plain(name), Path(file).name, int(line)) for name, file, line in rows if Path(file).name == SOURCE.name]


def addr2lines(program: Path, answer: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """Return what binutils' addr2line prints for the program's own frames: function, file, line."""
    symbols = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    starts = {name: int(value, 16) for value, _, name in re.findall(r"^([0-9a-f]+) (\w) (\S+)$", symbols, re.M)}
    (stack,) = answer["stacks"]
    own = [f for f in stack["frames"] if f["module"] == PROGRAM and f["function"] != "_start" and not f.get("inlined")]
    places = [hex(starts[frame["function"]] + frame["offset"] - 1) for frame in own]
    words = ["addr2line", "-i", "-f", "-C", "-e", str(program), *places]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [(name, place.split(" (")[0].rsplit(":", 1)) for name, place in zip(printed[::2], printed[1::2])]
    return [(last(plain(name)), Path(file).name, int(line) if line.isdigit() else 0) for name, (file, line) in rows]


def last(function: str) -> str:
    """Return the last part of a name: addr2line leaves out the namespaces of functions without linkage names."""
    return function.rsplit("::", 1)[-1]


def check(found: Sequence[Seen], one: Stopped) -> None:
    """Check that the frames and lines are those that the program printed, and that the frames between wait_here, outer and main are
    inlined."""
    (top, *rest), apart = found, ("outer", "main")
    assert (top.function, top.file, top.inlined) == ("wait_here", SOURCE.name, False) and top.line
    assert [(one.function, one.line) for one in rest] == list(one.truth)
    assert {frame.file for frame in found} == {SOURCE.name}
    assert [frame.inlined for frame in rest] == [frame.function not in apart for frame in rest]


def objcopy(*words: object) -> None:
    subprocess.run(["objcopy", *map(str, words)], check=True)


def build_id(program: Path) -> str:
    printed = subprocess.run(["readelf", "-n", program], capture_output=True, text=True, check=True).stdout
    return next(line.split()[-1] for line in printed.splitlines() if "Build ID" in line)


def split(program: Path, folder: Path) -> tuple[Path, Path]:
    """Write a stripped copy of the program to `folder`, and its debug file."""
    stripped, debug = folder / PROGRAM, folder / f"{PROGRAM}.debug"
    objcopy("--only-keep-debug", program, debug)
    objcopy("--strip-all", program, stripped)
    return stripped, debug
