"""`track --size` by requested and by usable sizes, several stacks of one leak, and the reason if there are no rows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import building
import pytest
from counts import until
from debuggers import PATIENCE, environment
from tracking import by_gdb, by_line, read_result, recording, start_tracked

pytestmark = pytest.mark.platform("x86-64", "`count --inject`, `track`")
IDLE_SECONDS = "0.5"
STOPPED_SECONDS = "2"
"""Long enough that findleaks sees the stopped process at least once, even on a busy machine."""


program = building.fixture("tracked_stacks.c", "-O2")


@pytest.mark.parametrize(("front_end", "requested"), [(by_line, True), (by_gdb, False)], ids=["requested", "usable in GDB"])
def test_either_size_finds_all_and_one_leak_is_one_entry(program: Path, front_end: object, requested: bool) -> None:
    assert callable(front_end)
    with start_tracked([str(program)]) as running:
        (note,) = running.round()
        assert note.size != 64
        working = recording(front_end(running.pid, "--json", "--size", "64" if requested else str(note.size)), running.pid)
        running.round()
        working.send_signal(signal.SIGINT)
        report = read_result(working)
    assert (report["recorded"], report["reasons"]) == (1030, [])
    seen = {entry["function"]: (entry["stacks"], entry["lost"]["blocks"], entry["held"]["blocks"]) for entry in report["entries"]}
    assert seen == {"lose": (99, 990, 0), "lose_other": (3, 30, 0), "keep": (1, 0, 10)}
    assert [frame["function"] for frame in report["entries"][0]["frames"]] == ["malloc", "xmalloc", "lose", "descend"]
    assert len(report["stacks"]) == 103
    assert sum(stack["lost"]["blocks"] for stack in report["stacks"] if stack["entry"] == 1) == 990


def test_the_text_has_an_entry_with_its_variants(program: Path) -> None:
    with start_tracked([str(program)]) as running:
        running.round()
        working = recording(by_line(running.pid, "--size", "57-64"), running.pid)
        running.round()
        working.send_signal(signal.SIGINT)
        output, errors = working.communicate(timeout=PATIENCE)
    assert working.returncode == 0, errors
    lines = output.splitlines()
    assert lines[0] == "  lose: 990 blocks (62 KiB) leaked, by 99 stacks"
    assert "      ← 980 blocks (61 KiB) leaked: descend (98 stacks)" in lines
    assert sum("by 3 stacks" in one for one in lines) == 1


@pytest.fixture
def python() -> Iterator[subprocess.Popen[str]]:
    """Start a Python program that creates small objects and a list of them for each line that it reads."""
    code = "import sys\nl = []\nfor line in sys.stdin: l.append([object() for _ in range(100)]); print('done', flush=True)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        make_objects(process)
        yield process
        process.kill()


def make_objects(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


def _reasons(working: subprocess.Popen[str]) -> dict[str, str]:
    report = read_result(working)
    assert (report["stacks"], report["entries"], report["recorded"]) == ([], [], 0)
    return {one["reason"]: one["text"] for one in report["reasons"]}


def _reasons_after(seconds: str, pid: int) -> dict[str, str]:
    command = by_line(pid, "--json", "--size", "64", "--for", seconds)
    return _reasons(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()))


def test_pymalloc_is_named(python: subprocess.Popen[str]) -> None:
    working = recording(by_line(python.pid, "--json", "--size", "48"), python.pid)
    make_objects(python)
    working.send_signal(signal.SIGINT)
    found = _reasons(working)
    assert set(found) == {"other_sizes", "pymalloc"}
    assert "malloc sees only its arenas" in found["pymalloc"]


def test_an_idle_process_and_a_stopped_one(program: Path) -> None:
    with start_tracked([str(program)]) as running:
        assert set(_reasons_after(IDLE_SECONDS, running.pid)) == {"idle"}
        os.kill(running.pid, signal.SIGSTOP)
        until(lambda: ") T " in Path(f"/proc/{running.pid}/stat").read_text(), "its stop")
        found = _reasons_after(STOPPED_SECONDS, running.pid)
        # On a busy machine, the process may stop again late after findleaks resumes it, so it is stopped for only part of the time.
        assert set(found) == {"stopped"} or (set(found) == {"idle", "stopped"} and found["stopped"].endswith("% of the time")), found
        until(lambda: ") T " in Path(f"/proc/{running.pid}/stat").read_text(), "its stop again")
        os.kill(running.pid, signal.SIGCONT)
        assert running.round()
