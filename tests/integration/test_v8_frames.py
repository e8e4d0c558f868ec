"""findleaks and V8 list the same frames of JavaScript functions at the same stop. At random stops, each listed frame is possible."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import debuggers
import frame_stops
import nodes
import pytest
import v8_frames
from kernel_cores import run_until_crash

import findleaks
from findleaks.runtimes.node import find_frames
from findleaks.runtimes.v8.frames.reader import JavaScriptFrames
from findleaks.target.base import Target

VERSIONS = ("12.22.12", "14.21.3", "16.20.2", "18.20.8", "20.20.0", "22.12.0", nodes.NEWEST)
CALLS = [
    (nodes.NEWEST, "stop", 6, ()),
    *(pytest.param(one, mode, 30, (), marks=pytest.mark.matrix) for one in VERSIONS for mode in ("stop", "late")),
    pytest.param("22.12.0", "stop", 30, ("--maglev",), marks=pytest.mark.matrix),
    pytest.param(nodes.NEWEST, "stop", 30, ("--no-opt", "--no-maglev", "--always-sparkplug"), marks=pytest.mark.matrix),
    pytest.param("16.20.2", "stop", 30, ("--no-opt", "--always-sparkplug"), marks=pytest.mark.matrix),
    pytest.param("12.22.12", "stop", 30, ("--no-opt",), marks=pytest.mark.matrix),
]
STOPS = [(nodes.NEWEST, 5), *(pytest.param(one, 60, marks=pytest.mark.matrix) for one in VERSIONS)]


@pytest.mark.platform("x86-64", "Node: frames of JavaScript functions", of="12 to 24")
@pytest.mark.parametrize(("version", "mode", "stops", "flags"), CALLS)
def test_frames_at_calls(version: str, mode: str, stops: int, flags: tuple[str, ...], tmp_path: Path) -> None:
    found, waiting = [], 0
    with v8_frames.busy(version, tmp_path, mode, stops, 7, *flags) as program:
        for _ in range(stops):
            program.wait_until_stopped()
            stack = program.stacks()[program.pid]
            assert stack.complete
            found.append(v8_frames.read(stack.frames))
            program.resume()
            printed = program.read_until(r"\n") if mode == "late" else ""
        text = printed and program.output.read_text()
    lines = (text or program.output.read_text()).splitlines()
    for one, line in zip(found, lines):
        theirs = v8_frames.parse_printed(line)
        assert one == theirs
        waiting += bool(theirs[1])
    assert len(lines) == stops and (waiting or stops < 20)


@pytest.mark.parametrize(("version", "stops"), STOPS)
def test_frames_at_any_stop(version: str, stops: int, tmp_path: Path) -> None:
    """If a thread stops at an instruction that is not a call, the line and the inlined functions are unknown. About one stop in 15 is at
    such an instruction, so the test needs many stops."""
    with_lines = compared = 0
    with v8_frames.busy(version, tmp_path, "free", 1, 3) as program:
        program.read_line("ready\n")
        while compared < stops:
            time.sleep(0.03)
            program.stop()
            stack = program.stacks()[program.pid]
            program.resume()
            frames = [one for one in stack.frames if one.kind == "JavaScript"]
            if not frames:
                continue  # waits for a timer, or collects garbage
            compared += 1
            assert stack.complete and v8_frames.is_possible(stack), stack
            assert all(one.reason or (one.function and (one.line or not one.file)) for one in frames), stack
            with_lines += sum(bool(one.line) for one in frames) > len(frames) - 2
    assert with_lines > (compared // 2 if compared > 20 else 0)


def test_front_ends_and_cores(tmp_path: Path) -> None:
    with v8_frames.busy(nodes.NEWEST, tmp_path, "stop", 2, 7) as program:
        program.wait_until_stopped()
        pid, node = str(program.pid), nodes.get(nodes.NEWEST)
        subprocess.run(["gcore", "-o", tmp_path / "core", pid], check=True, capture_output=True)
        core = str(tmp_path / f"core.{pid}")
        shown = [
            debuggers.findleaks("stacks", "--no-lines", "--json", core),
            debuggers.gdb(["leaks stacks --no-lines --json"], node, core),
            debuggers.lldb(["leaks stacks --no-lines --json"], node, "-c", core),
            debuggers.findleaks("stacks", "--no-lines", "--json", "--pid", pid),
        ]
        text = debuggers.findleaks("stacks", "-c", "halt", "--no-lines", "--frames", "0", core)
        (printed, *_) = program.output.read_text().splitlines()
    theirs, _ = v8_frames.parse_printed(printed)
    for one in shown:
        (stack,) = (each for each in json.loads(debuggers.objects(one)[0])["stacks"] if program.pid in each["threads"])
        frames = [frame for frame in stack["frames"] if frame.get("kind") == "JavaScript" and frame.get("file")]
        assert [(frame["function"], frame["file"], frame["line"]) for frame in frames] == [frame for frame in theirs if frame[1]]
    assert re.search(
        r"stop\+0x[0-9a-f]+  \[v8_stop\.node\]\n(.*\[node\]\n)+ +halt at programs/v8_frames\.js:\d+  \[JavaScript\]\n +tick at", text
    )
    assert re.search(
        r"\[JavaScript\]\n +Builtins_JSEntryTrampoline.*\n +Builtins_JSEntry\+.*\n +v8::internal::\(anonymous namespace\)::Invoke", text
    )


def crash_of(core: Path) -> dict[str, Any]:
    """Return the finding about how a process ended."""
    every = json.loads(debuggers.run_cli("verdict", "--json", str(core)).stdout)["findings"]
    (found,) = (one for one in every if one["finding"] == "crash")
    made: dict[str, Any] = found
    return made


@pytest.mark.parametrize("mode", ["abort", pytest.param("fault", marks=pytest.mark.matrix)])
def test_crashes(mode: str, tmp_path: Path) -> None:
    core, _ = run_until_crash(v8_frames.command(nodes.NEWEST, tmp_path, mode, 1, 7), tmp_path / "core")
    found = crash_of(core)
    name = "abort" if mode == "abort" else "halt"
    assert found["evidence"]["managed_frame"]["function"] == name
    place = "SIGABRT in node::Abort (node)" if mode == "abort" else "SIGSEGV in fault (v8_stop.node)"
    assert re.search(rf"{re.escape(place)}, called by JavaScript function {name} at programs/v8_frames\.js:\d+", found["text"])


@pytest.mark.matrix
@pytest.mark.parametrize("version", VERSIONS)
def test_heap_is_full(version: str, tmp_path: Path) -> None:
    """V8 ends the process. `verdict` names the function that needed memory, or the function into which it is inlined. It names none if V8
    was moving its code."""
    program = "const kept = []\nfunction keep (i) { kept.push(new Array(1000).fill(i + 0.5)) }\nfor (let i = 0; ; i++) keep(i)\n"
    (tmp_path / "full.js").write_text(program)
    command = [nodes.get(version), "--max-old-space-size=40", str(tmp_path / "full.js")]
    core, said = run_until_crash(command, tmp_path / "core")
    assert "JavaScript heap out of memory" in said
    found = crash_of(core)
    place = rf"( in JavaScript function (keep|\(anonymous\)) at {re.escape(tmp_path.name)}/full\.js(:\d)?)?"
    assert re.search(rf"ended with SIGABRT{place}: fatal error: JavaScript heap out of memory", found["text"])


def test_damaged_frames(tmp_path: Path) -> None:
    """findleaks reads the frames of a damaged process without an error. The names of functions are complete names of the program."""
    with v8_frames.busy(nodes.NEWEST, tmp_path, "stop", 2, 7) as program:
        program.wait_until_stopped()
        with findleaks.attach(program.pid) as process:
            target = process._session.target
            whole = frame_stops.function_names(target, reader_of(target))
            assert len(whole) > 10
            cut = 0
            for seed in range(10):
                reader = reader_of(target)
                assert reader._names is not None
                heap = reader._names.heap
                memory = frame_stops.DamagedMemory(heap.memory, seed)
                for part in (heap, reader._names.builtins, reader._names.code, heap.functions, heap.maps):
                    part._memory = memory  # type: ignore[union-attr]
                heap.memory = memory
                cut += frame_stops.function_names(target, reader) != whole
            assert cut > 3


def reader_of(target: Target) -> JavaScriptFrames:
    reader = find_frames(target)
    assert isinstance(reader, JavaScriptFrames)
    return reader
