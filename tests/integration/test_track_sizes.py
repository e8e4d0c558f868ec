"""`track --size` by requested and by usable sizes, many stacks of one leak, and why there are no rows."""

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
from tracking import by_gdb, by_line, finished, recording, tracked

pytestmark = pytest.mark.platform("x86-64", "`count --inject`, `track`")
IDLE_SECONDS = "0.5"
STOPPED_SECONDS = "2"
"""Long enough that findleaks sees the stopped process at least once, even on a busy machine."""


program = building.fixture("tracked_stacks.c", "-O2")


@pytest.mark.parametrize(("door", "requested"), [(by_line, True), (by_gdb, False)], ids=["requested", "usable in GDB"])
def test_either_size_finds_all_and_one_leak_is_one_entry(program: Path, door: object, requested: bool) -> None:
    assert callable(door)
    with tracked([str(program)]) as running:
        (note,) = running.round()
        assert note.size != 64
        working = recording(door(running.pid, "--json", "--size", "64" if requested else str(note.size)), running.pid)
        running.round()
        working.send_signal(signal.SIGINT)
        report = finished(working)
    assert (report["recorded"], report["reasons"]) == (1030, [])
    seen = {entry["function"]: (entry["stacks"], entry["lost"]["blocks"], entry["held"]["blocks"]) for entry in report["entries"]}
    assert seen == {"lose": (99, 990, 0), "lose_other": (3, 30, 0), "keep": (1, 0, 10)}
    assert [frame["function"] for frame in report["entries"][0]["frames"]] == ["malloc", "xmalloc", "lose", "descend"]
    assert len(report["stacks"]) == 103
    assert sum(stack["lost"]["blocks"] for stack in report["stacks"] if stack["entry"] == 1) == 990


def test_the_text_has_an_entry_with_its_variants(program: Path) -> None:
    with tracked([str(program)]) as running:
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
def python() -> Iterator[int]:
    """A Python that makes small objects all the time."""
    code = "l = []\nprint(1, flush=True)\nwhile True: l.append([object() for _ in range(100)]); time.sleep(0.002)"
    with subprocess.Popen([sys.executable, "-c", f"import time\n{code}"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        yield process.pid
        process.kill()


def _reasons(pid: int, size: str, seconds: str = IDLE_SECONDS) -> dict[str, str]:
    command = by_line(pid, "--json", "--size", size, "--for", seconds)
    working = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    report = finished(working)
    assert (report["stacks"], report["entries"], report["recorded"]) == ([], [], 0)
    return {one["reason"]: one["text"] for one in report["reasons"]}


def test_pymalloc_is_named(python: int) -> None:
    found = _reasons(python, "48")
    assert set(found) == {"other_sizes", "pymalloc"}
    assert "malloc sees only its arenas" in found["pymalloc"]


def test_an_idle_process_and_a_stopped_one(program: Path) -> None:
    with tracked([str(program)]) as running:
        assert set(_reasons(running.pid, "64")) == {"idle"}
        os.kill(running.pid, signal.SIGSTOP)
        until(lambda: ") T " in Path(f"/proc/{running.pid}/stat").read_text(), "its stop")
        found = _reasons(running.pid, "64", STOPPED_SECONDS)
        # On a busy machine, the process may stop again late after findleaks resumes it. Then it is stopped for only a part of the time.
        assert set(found) == {"stopped"} or (set(found) == {"idle", "stopped"} and found["stopped"].endswith("% of the time")), found
        until(lambda: ") T " in Path(f"/proc/{running.pid}/stat").read_text(), "its stop again")
        os.kill(running.pid, signal.SIGCONT)
        assert running.round()
