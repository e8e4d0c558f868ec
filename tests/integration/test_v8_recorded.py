"""JavaScript frames of the calls that `count` counts and of the blocks that `track` records are those that V8 lists for the same calls."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import building
import native_calls
import nodes
import pytest
import v8_frames
from native_calls import Calls, Frames

ROUNDS, CALLS, SIZES, KIND = 3, 8, "30000-30024", "JavaScript"
VERSIONS = ("12.22.12", "14.21.3", "16.20.2", "18.20.8", "20.20.0", "22.12.0", nodes.NEWEST)
QUICK = [(nodes.NEWEST, "breakpoints")]
EACH = [
    pytest.param(version, way, marks=() if (version, way) in QUICK else pytest.mark.matrix, id=f"{version}-{way}")
    for version in VERSIONS
    for way in native_calls.WAYS
]


@contextmanager
def calling(version: str, folder: Path, seed: int, *flags: str, thread: str = "main") -> Iterator[Calls]:
    options = ("-O2", "-g", "-fno-omit-frame-pointer", "-shared", "-fPIC")
    addon = building.compiled(folder, "v8_native_calls.c", *options, name="v8_native_calls.node")
    command = [nodes.get(version), *flags, str(v8_frames.PROGRAM), str(addon), "calls", str(CALLS), str(seed), thread]
    program = Calls(command, addon)
    try:
        yield program
    finally:
        program.end()


def listed(printed: str) -> Counter[Frames]:
    """The frames that V8 printed and that have a script: not builtins, and not evaluated text."""
    found: Counter[Frames] = Counter()
    for count, _, frames in json.loads(printed):
        found[plain(tuple((name or v8_frames.ANONYMOUS, script, line) for name, script, line in frames))] += count
    return found


def plain(frames: Frames) -> Frames:
    return tuple((name, script.removeprefix("file://"), line) for name, script, line in frames if script)


def recorded(recording: native_calls.Recording) -> Counter[Frames]:
    found: Counter[Frames] = Counter()
    for frames, count in native_calls.recorded(recording, KIND).items():
        found[plain(frames)] += count
    return found


@pytest.mark.parametrize(("version", "way"), EACH)
def test_frames_of_recorded_calls(version: str, way: str, tmp_path: Path) -> None:
    with calling(version, tmp_path, 7, "--expose-gc") as program:
        made = native_calls.record(program, way, ROUNDS, CALLS, SIZES)
    assert recorded(made) == listed(made.printed)
    assert recorded(made).total() == ROUNDS * CALLS
