"""`count` and `track` list the same JavaScript frames of a call as V8 itself."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import building
import counts
import native_calls
import nodes
import pytest
import v8_frames
from native_calls import Calls, Frames

import findleaks
from findleaks.runtimes.v8.frames.reader import find_frame_reader

ROUNDS, CALLS, SIZES, KIND = 3, 8, "30000-30024", "JavaScript"
VERSIONS = ("12.22.12", "14.21.3", "16.20.2", "18.20.8", "20.20.0", "22.12.0", nodes.NEWEST)
INJECTED = ("track", "inject")
CLOSURES, RENAMED = ("first", "second", "δ"), "renamed"
QUICK = [(nodes.NEWEST, "track"), (nodes.NEWEST, "breakpoints")]
EACH = [
    pytest.param(version, way, marks=() if (version, way) in QUICK else pytest.mark.matrix, id=f"{version}-{way}")
    for version in VERSIONS
    for way in native_calls.WAYS
]
KINDS_OF_CODE = [
    ("24.0.0", "--no-opt", "--no-maglev", "--always-sparkplug"),
    ("16.20.2", "--no-opt", "--always-sparkplug"),
    ("12.22.12", "--no-opt"),
]


def addon_in(folder: Path) -> Path:
    options = ("-O2", "-g", "-fno-omit-frame-pointer", "-shared", "-fPIC")
    return building.compile_program(folder, "v8_native_calls.c", *options, name="v8_native_calls.node")


@contextmanager
def calling(version: str, folder: Path, *flags: str, thread: str = "main") -> Iterator[Calls]:
    addon = addon_in(folder)
    program = Calls([nodes.get(version), *flags, str(v8_frames.PROGRAM), str(addon), "calls", str(CALLS), "7", thread], addon)
    try:
        yield program
    finally:
        program.end()


def parse_stacks(printed: str, way: str) -> Counter[Frames]:
    """Count the stacks that V8 printed, without frames that have no script (builtins and evaluated text)."""
    found: Counter[Frames] = Counter()
    for count, _, frames in json.loads(printed):
        named = tuple((name or v8_frames.ANONYMOUS, script, line) for name, script, line in frames)
        found[make_comparable(with_script(named), way)] += count
    return found


def make_comparable(frames: Frames, way: str) -> Frames:
    """Remove the names of inlined closures, because they cannot always be read. With injected code, also remove the names of other
    functions that were renamed after V8 created them."""
    removed = (*CLOSURES, RENAMED) if way in INJECTED else CLOSURES
    return tuple(("" if name in removed else name, script, line) for name, script, line in frames)


def with_script(frames: Frames) -> Frames:
    return tuple((name or "", script.removeprefix("file://"), line) for name, script, line in frames if script)


def check(version: str, way: str, folder: Path, *flags: str, thread: str = "main") -> None:
    with calling(version, folder, "--expose-gc", *flags, thread=thread) as program:
        made = native_calls.record(program, way, ROUNDS, CALLS, SIZES)
    found: Counter[Frames] = Counter()
    for frames, count in native_calls.count_recorded(made, KIND).items():
        found[make_comparable(with_script(frames), way)] += count
    alike = Counter(json.dumps([stack["frames"], stack.get("end")]) for stack in made.stacks)
    assert max(alike.values()) == 1
    assert found == parse_stacks(made.printed, way)
    assert found.total() == ROUNDS * CALLS


@pytest.mark.parametrize(("version", "way"), EACH)
def test_frames_of_recorded_calls(version: str, way: str, tmp_path: Path) -> None:
    """The program collects garbage between the calls, so that functions move."""
    check(version, way, tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize("way", ["inject", "breakpoints"])
@pytest.mark.parametrize("words", KINDS_OF_CODE)
def test_kinds_of_code(words: tuple[str, ...], way: str, tmp_path: Path) -> None:
    version, *flags = words
    check(version, way, tmp_path, *flags)


@pytest.mark.matrix
@pytest.mark.parametrize("way", ["track", "breakpoints"])
@pytest.mark.parametrize("version", ["12.22.12", "18.20.8", nodes.NEWEST])
def test_workers(version: str, way: str, tmp_path: Path) -> None:
    check(version, way, tmp_path, thread="worker")


@pytest.mark.matrix
@pytest.mark.parametrize("way", ["inject", "breakpoints"])
@pytest.mark.parametrize("version", ["12.22.12", nodes.NEWEST])
def test_no_names_while_functions_move(version: str, way: str, tmp_path: Path) -> None:
    """A garbage collection moves functions, so the functions on the stack that it interrupted have no names."""
    with calling(version, tmp_path, "--expose-gc") as program:
        options = ["v8::internal::Heap::PerformGarbageCollection", "--json", "--limit", "0", "--frames", "0", "--events", "20"]
        command = counts.by_command_line(program.pid, [*options, *(["--inject"] if way == "inject" else [])])
        with open(tmp_path / "report", "wb") as file, subprocess.Popen(command, stdout=file) as counting:
            while counting.poll() is None:
                program.round()
                time.sleep(0.2)  # the output of a round has all stacks up to now
    (report,) = counts.parse_tables((tmp_path / "report").read_text())
    frames = [frame for stack in report["stacks"] for frame in stack["frames"]]
    assert "Builtins_InterpreterEntryTrampoline" in {frame["function"] for frame in frames}
    assert not any(frame.get("kind") for frame in frames)


FORGING = """
const addon = require(process.argv[1]);
function inner() { return addon.probeForged(); }
function outer() { return inner(); }
console.log('ready');
require('readline').createInterface(process.stdin).on('line', () => console.log(`${outer()}\ndone`));
"""


@pytest.mark.parametrize("way", ["track", pytest.param("inject", marks=pytest.mark.matrix)])
@pytest.mark.parametrize("version", [nodes.NEWEST, *(pytest.param(one, marks=pytest.mark.matrix) for one in VERSIONS[:-1])])
def test_frames_that_refer_to_unmapped_memory(version: str, way: str, tmp_path: Path) -> None:
    """The process continues, calls are counted, and a warning gives the reason for the missing functions."""
    addon = addon_in(tmp_path)
    program = Calls([nodes.get(version), "-e", FORGING, str(addon)], addon)
    try:
        made = native_calls.record(program, way, ROUNDS, 1, "1000")
        assert int(made.printed) >= 2
        assert int(program.round()) >= 2
    finally:
        program.end()
    stacks = [[frame["function"] for frame in stack["frames"]] for stack in made.stacks]
    assert sum(amount for stack, amount in zip(stacks, made.amounts) if "probe_forged" in stack) == ROUNDS
    # V8's parser may allocate as many bytes when it compiles one of the two functions.
    assert not any({"inner", "outer"} & {*stack} for stack in stacks if "probe_forged" in stack)
    assert any("refer to memory that is not mapped" in warning for warning in made.warnings)


def test_warning_if_no_thread_is_in_v8(tmp_path: Path) -> None:
    with calling(nodes.NEWEST, tmp_path) as program, findleaks.attach(program.pid) as process:
        target = process._session.target
        reader = find_frame_reader(target)
        assert reader is not None
        reader.see_threads([])
        assert not reader.chain_settings
        (warning,) = reader.warnings
        assert warning.startswith("functions of JavaScript have no names in recorded stacks: no thread was in V8")
        again = find_frame_reader(target)
        assert again is not None
        again.see_threads([thread.thread_pointer for thread in target.threads()])
        assert again.chain_settings and not again.warnings
