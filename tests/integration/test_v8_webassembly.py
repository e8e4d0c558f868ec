"""findleaks and V8 list the same frames of WebAssembly and JavaScript functions at the same stop."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import frame_stops
import nodes
import pytest
import truth
import v8_frames

PROGRAM = truth.PROGRAMS / "v8_webassembly.js"
VERSIONS = ("12.22.12", "14.21.3", "16.20.2", "18.20.8", "20.20.0", "22.12.0")
OPTIMIZING = {
    "20.20.0": ("--wasm-tiering-budget=100", "--experimental-wasm-inlining", "--experimental-wasm-gc"),
    "22.12.0": ("--wasm-tiering-budget=100",),
    nodes.NEWEST: ("--wasm-tiering-budget=1000",),
}
"""Options with which V8 soon optimizes functions of WebAssembly, and inlines them."""

BUILDS = (1, "names"), (1, "none"), (20000, "names"), (20000, "none")
"""Calls before the stop, and names of the module."""

CALLS = [
    (nodes.NEWEST, 1, "names", ()),
    pytest.param(nodes.NEWEST, 20000, "names", OPTIMIZING[nodes.NEWEST], marks=pytest.mark.matrix),
    *(pytest.param(one, calls, names, (), marks=pytest.mark.matrix) for one in VERSIONS for calls, names in BUILDS),
    *(pytest.param(one, 3000, "names,struct", OPTIMIZING[one], marks=pytest.mark.matrix) for one in OPTIMIZING),
]
STOPS = [pytest.param(nodes.NEWEST, 3), *(pytest.param(one, 20, marks=pytest.mark.matrix) for one in (*VERSIONS, nodes.NEWEST))]


@contextmanager
def run(version: str, folder: Path, mode: str, calls: int, names: str, *flags: str) -> Iterator[frame_stops.Busy]:
    command = [nodes.get(version), *flags, str(PROGRAM), str(v8_frames.addon(folder)), mode, str(calls), names]
    program = frame_stops.Busy(command, os.environ, folder / "output")
    try:
        yield program
    finally:
        program.end()


def find_functions(program: frame_stops.Busy) -> list[tuple[str, str]]:
    """Return the function and the file of each managed frame, innermost first."""
    stack = program.stacks()[program.pid]
    assert stack.complete
    return [(one.function or "", one.file or "") for one in stack.frames if one.kind]


def name_printed(function: str, text: str) -> str:
    """Return the name of a function that V8 printed. A function of a module without names has its number."""
    return function or f"wasm-function[{text.partition('wasm-function[')[2].partition(']')[0]}]"


@pytest.mark.parametrize(("version", "calls", "names", "flags"), CALLS)
def test_frames_at_calls(version: str, calls: int, names: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    with run(version, tmp_path, "stop", calls, names, *flags) as program:
        program.wait_until_stopped()
        found = find_functions(program)[:5]
        printed = json.loads(program.output.read_text())[:5]
    is_named = names.startswith("names")
    inner = ["chargeCard", "placeOrder", "größe"] if is_named else [f"wasm-function[{at}]" for at in (1, 2, 3)]
    assert [function for function, _ in found] == ["pause", *inner, "serve"]
    assert [file for _, file in found] == [file for _, file, _ in printed]
    if is_named or not version.startswith("14."):  # prints the names with which the module exports functions
        assert [name_printed(function, text) for function, _, text in printed] == ["pause", *inner, "serve"]


@pytest.mark.parametrize(("version", "stops"), STOPS)
def test_frames_at_any_stop(version: str, stops: int, tmp_path: Path) -> None:
    deepest = 0
    with run(version, tmp_path, "free", 1, "names") as program:
        program.read_line("ready\n")
        for _ in range(stops):
            time.sleep(0.01)
            program.stop()
            names = [function for function, _ in find_functions(program)]
            program.resume()
            depth = names.count("fibonacci")
            assert names[: depth + 1] == ["fibonacci"] * depth + ["busy"], names
            deepest = max(deepest, depth)
    assert deepest > 1 or stops < 10
