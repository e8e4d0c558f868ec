"""Run programs that call the C function `probed` from functions of a managed language. For each
line of input, a program does one round of calls, and prints the frames of each call."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import building
import counts
import tracking

Frames = tuple[tuple[str, str, int], ...]
"""Function, file ("": none) and line (0: none) of each managed frame, innermost first."""

WAYS = ("track", "inject", "breakpoints", "LLDB")


class Calls:
    """The running program."""

    def __init__(self, command: Sequence[str], library: Path, environment: Optional[Mapping[str, str]] = None) -> None:
        self.process = subprocess.Popen(list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.pid = self.process.pid
        self.read_until("ready\n")
        self.places = counts.places(self.pid, library, ["probed"])

    def read_until(self, end: str) -> str:
        assert self.process.stdout is not None
        text = ""
        while (line := self.process.stdout.readline()) not in (end, ""):
            text += line
        assert line == end, text
        return text

    def round(self) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.read_until("done\n")

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Recording(NamedTuple):
    """The stacks that findleaks reports for several rounds, and the text that the program prints after the last round. `amounts`: the
    number of calls of each stack."""

    stacks: Sequence[Mapping[str, Any]]
    amounts: Sequence[int]
    printed: str
    warnings: Sequence[str] = ()


def library(folder: Path) -> Path:
    """Compile the library with `probed` and `call_back`, and return its path."""
    # With a frame pointer, there are instructions before the first call. They leave enough space
    # for the jump to a stub.
    options = ("-O2", "-g", "-fno-omit-frame-pointer", "-shared", "-fPIC")
    return building.compile_program(folder, "native_calls.c", *options, name="native_calls.so")


def record(program: Calls, way: str, rounds: int, calls: int, sizes: str, *words: str) -> Recording:
    """Record several rounds of calls. `way`: one of WAYS. `calls`: the number of calls in a round.
    `sizes`: the sizes of the blocks to record. `words`: additional arguments for LLDB."""
    if way == "track":
        working = tracking.recording(tracking.by_line(program.pid, "--size", sizes, "--limit", "0", "--json"), program.pid)
        printed = [program.round() for _ in range(rounds)][-1]
        working.send_signal(signal.SIGINT)
        report = tracking.read_result(working)
        stacks = report["stacks"]
        return Recording(stacks, [stack["allocated"]["blocks"] for stack in stacks], printed, report["warnings"])
    options = ["probed", "--json", "--limit", "0", "--events", str(rounds * calls), *(["--inject"] if way == "inject" else [])]
    door = counts.by_lldb if way == "LLDB" else counts.by_command_line
    command = door(program.pid, options)
    if words and way == "LLDB":
        at = command.index("-p") + 2
        command[at:at] = words
    counting = counts.Working(command, program.pid, program.places, counts.code(program.pid, program.places))
    printed = [program.round() for _ in range(rounds)][-1]
    (report,) = counts.parse_tables(counting.finish())
    stacks = report["stacks"]
    return Recording(stacks, [stack["count"] for stack in stacks], printed, report["warnings"])


def parse_listed(printed: str) -> Counter[Frames]:
    """Return the stacks that the program printed as JSON, with the number of calls of each stack in
    all rounds."""
    found: Counter[Frames] = Counter()
    for count, _, frames in json.loads(printed):
        found[tuple((function, file, line) for function, file, line in frames)] += count
    return found


def count_recorded(recording: Recording, kind: str) -> Counter[Frames]:
    """Return the managed frames of each recorded stack that contains `probed`, with the number of
    calls."""
    found: Counter[Frames] = Counter()
    for stack, amount in _of_probed(recording):
        found[select_managed(stack, kind)] += amount
    return found


def _of_probed(recording: Recording) -> Iterator[tuple[Mapping[str, Any], int]]:
    pairs = zip(recording.stacks, recording.amounts)
    return ((stack, amount) for stack, amount in pairs if any(one["function"] == "probed" for one in stack["frames"]))


def select_managed(stack: Mapping[str, Any], kind: str) -> Frames:
    return tuple((one["function"], one.get("file") or "", one.get("line") or 0) for one in stack["frames"] if one.get("kind") == kind)


def check_callbacks(recording: Recording, kind: str, callers: Sequence[str]) -> int:
    """Check the frames around each `call_back`: the inner frames include managed functions, and the next outer managed function is one of
    `callers`. Return the number of frames of `call_back`."""
    places = 0
    for stack in recording.stacks:
        frames = stack["frames"]
        for at, frame in enumerate(frames):
            if frame["function"] == "call_back":
                places += 1
                inner, outer = ([one["function"] for one in part if one.get("kind") == kind] for part in (frames[:at], frames[at:]))
                assert inner and outer[0] in callers, stack
    return places


def check_sizes(recording: Recording, kind: str) -> int:
    """Check that blocks allocated through the function `made_N` have 1000 + N bytes, even if
    another function was at the same address before. Return the number of stacks with such a
    function."""
    named = 0
    for stack, amount in _of_probed(recording):
        found = [int(one[0].partition("_")[2]) for one in select_managed(stack, kind) if one[0].startswith("made_")]
        if found:
            named += 1
            # The number of blocks is an estimate, and it is rounded.
            assert len(found) == 1 and abs(stack["allocated"]["bytes"] / (1000 + found[0]) - amount) <= 1, stack
    return named
