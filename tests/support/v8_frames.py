"""A Node program that is busy in functions of every kind, and the stacks that V8 itself prints."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import building
import frame_stops
import nodes
import truth

from findleaks.results.sites import StackFrame
from findleaks.results.stacks import ThreadGroup

PROGRAM = truth.PROGRAMS / "v8_frames.js"
ANONYMOUS = "(anonymous)"

Frames = list[tuple[str, str, int]]
"""Function, script ("": none) and line (0: unknown) of each frame, innermost first."""

_OTHER_NAMES = {
    "Base": r"super\(|new |Reflect\.construct|class extends",
    "Derived": r"new |Reflect\.construct|class extends",
    "toString": r"`\$\{derived\}`",
    "toJSON": r"JSON\.stringify",
    "[Symbol.toPrimitive]": r"derived\}?[` *]",
    "[Symbol.iterator]": r"= derived",
    "onEvent": r"emit",
    "get": r"proxy\[",
    "get property": r"\.property",
    "set property": r"\.property =",
    "toBind": r"bound\(",
    "eval": r"made\(",
    "anonymous": r"made\(",
    "order": r"sort\(",
    "generate": r"\.next\(",
    "produce": r"await",
    "leaf": r"await|leaf",
    "outer": r"await|outer",
    "<instance_members_initializer>": r"class Fields",
    "structured": r".",
}
"""Text that a line with a call contains, for functions whose name is not in the line."""


def addon(folder: Path) -> Path:
    """Compile the addon that stops the process."""
    return building.compile_program(folder, "v8_stop.c", "-shared", "-fPIC", name="v8_stop.node")


def command(version: str, folder: Path, mode: str, stops: int, seed: int, *flags: str) -> list[str]:
    return [nodes.get(version), *flags, str(PROGRAM), str(addon(folder)), mode, str(stops), str(seed)]


@contextmanager
def busy(version: str, folder: Path, mode: str, stops: int, seed: int, *flags: str) -> Iterator[frame_stops.Busy]:
    """Start the program."""
    program = frame_stops.Busy(command(version, folder, mode, stops, seed, *flags), os.environ, folder / "output")
    try:
        yield program
    finally:
        program.end()


def parse_printed(line: str) -> tuple[Frames, Frames]:
    """Return the frames that V8 printed: the frames on the stack, and the frames of functions that wait for them. Builtins have neither
    script nor line."""
    every = [(name or ANONYMOUS, _path(script), line, waits) for name, script, line, waits in json.loads(line) if script or line]
    return [one[:3] for one in every if not one[3]], [one[:3] for one in every if one[3]]


def read(frames: Sequence[StackFrame]) -> tuple[Frames, Frames]:
    """Return the frames that findleaks lists, in the form of `parse_printed`."""
    every = [one for one in frames if one.kind == "JavaScript" and (one.file or one.line)]
    found = [((one.function or "", _path(one.file or ""), one.line or 0), one.is_async) for one in every]
    return [one for one, waits in found if not waits], [one for one, waits in found if waits]


def _path(script: str) -> str:
    return script[len("file://") :] if script.startswith("file://") else script


def is_possible(stack: ThreadGroup) -> bool:
    """Return whether each function of the program calls the previous one at its line, and whether its line is inside the function."""
    source = PROGRAM.read_text().splitlines()
    frames, _ = read(stack.frames)
    return all(_calls(source, caller, called) for called, caller in zip(frames, frames[1:]))


def _calls(source: Sequence[str], caller: tuple[str, str, int], called: tuple[str, str, int]) -> bool:
    """Return whether a function can call another one at its line. If its line is unknown or in another file, the answer is True."""
    if {caller[1], called[1]} != {str(PROGRAM)} or not caller[2]:
        return True
    text, name = source[caller[2] - 1], called[0]
    if re.search(rf"(?<!function ){re.escape(name)}\b" if name.isidentifier() else re.escape(name), text):
        return True
    if name in _OTHER_NAMES:
        return re.search(_OTHER_NAMES[name], text) is not None
    # A function without a name is an element of `ways`, or the caller passes it to a builtin at this line.
    return "ways[" in text or called[2] in (0, caller[2])
