"""Stacks of `track` beside GDB's own backtraces, at breakpoints on the same functions of the same process."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest
from counts import code, until
from debuggers import PATIENCE, environment
from tracking import JEMALLOC, Tracked, built, by_line, finished, recording, tracked

SCRIPT = """
import gdb, json
seen = set()
class Entry(gdb.Breakpoint):
    def stop(self):
        frame, found = gdb.newest_frame(), []
        while frame is not None:
            if frame.type() != gdb.INLINE_FRAME:
                found.append(frame.pc())
            frame = frame.older()
        if tuple(found) not in seen:
            seen.add(tuple(found))
            with open(OUTPUT, "a") as file:
                file.write(json.dumps(found) + "\\n")
        return False
for address in ADDRESSES:
    Entry(f"*{address}", internal=True)
"""


def backtraces(program: Tracked, addresses: list[str], folder: Path) -> set[tuple[int, ...]]:
    """What GDB says of a round, at each of these functions."""
    script, output = folder / "entries.py", folder / "stacks"
    script.write_text(f"ADDRESSES, OUTPUT = {addresses!r}, {str(output)!r}\n{SCRIPT}")
    settings = ["-iex", "set debuginfod enabled off", "-ex", "handle all nostop noprint pass", "-ex", "set print thread-events off"]
    words = [
        "gdb",
        "-nx",
        "-batch",
        *settings,
        "-p",
        str(program.pid),
        "-x",
        str(script),
        "-ex",
        "set backtrace past-main on",
        "-ex",
        "continue",
    ]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()) as debugger:
        at = {name: int(name, 16) for name in addresses}
        until(lambda: all(data[:1] == b"\xcc" for data in code(program.pid, at).values()), "the breakpoints")
        program.round()
        debugger.send_signal(signal.SIGTERM)
        debugger.wait(PATIENCE)
    until(lambda: "TracerPid:\t0" in Path(f"/proc/{program.pid}/status").read_text(), "GDB to let go")
    return {tuple(json.loads(line)) for line in output.read_text().splitlines()}


@pytest.mark.parametrize("preload", ["", pytest.param(JEMALLOC, marks=pytest.mark.matrix)], ids=["glibc", "jemalloc"])
def test_stacks_are_those_of_gdb(preload: str, tmp_path: Path) -> None:
    """Of a program without symbols and frame pointers."""
    with tracked([str(built(tmp_path, "tracked", "-s", "-fomit-frame-pointer"))], preload) as program:
        program.round()
        working = recording(by_line(program.pid, "--json"), program.pid)
        program.round()
        working.send_signal(signal.SIGINT)
        report = finished(working)
        stacks = {tuple(int(frame["address"], 16) for frame in stack["frames"]) for stack in report["stacks"]}
        entries = sorted({hex(stack[0]) for stack in stacks})
        found = backtraces(program, entries, tmp_path)
        assert len(stacks) >= 18
        assert stacks <= found
        # Below `fails` most calls fail; and of what an allocator's function calls of its own, only the outer call is recorded.
        (failing,) = {int(stack["frames"][2]["address"], 16) for stack in report["stacks"] if stack["held"]["blocks"] == 9}
        others = {stack for stack in found - stacks if failing not in stack}
        assert all(stack[2:] in {one[1:] for one in stacks} for stack in others)
