"""Ctrl-C ends `count` at any time, with its table, in each debugger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from debuggers import gdb
from pressed import compile_counting, failures

from cores import Running

PRESSING = """python
import os, signal
stops = 0
def pressing(event):
    global stops
    stops += 1
    if stops == 2:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
gdb.events.stop.connect(pressing)
end
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with Running([str(compile_counting(tmp_path))], tmp_path / "run") as run:
        (run.folder / "pause").write_text("1000")
        yield run


def test_ctrl_c_while_gdb_runs_other_python_code(running: Running, tmp_path: Path) -> None:
    """GDB prints a KeyboardInterrupt that is raised in another handler of an event, and then drops it."""
    (tmp_path / "pressing").write_text(PRESSING)
    output = gdb([f"source {tmp_path / 'pressing'}", "leaks count event --every 0.2 --for 60"], "-p", str(running.pid))
    assert "interrupted; the breakpoints were removed" in output
    assert "KeyboardInterrupt" not in output


COUNTS = [
    pytest.param("gdb", 8, id="gdb"),
    pytest.param("lldb", 4, id="lldb"),
    pytest.param("gdb", 1000, id="gdb 1,000", marks=pytest.mark.matrix),
    pytest.param("lldb", 200, id="lldb 200", marks=pytest.mark.matrix),
]


@pytest.mark.parametrize(("debugger", "number"), COUNTS)
def test_ctrl_c_at_random_times(debugger: str, number: int, tmp_path: Path) -> None:
    assert failures(debugger, number, 4, tmp_path) == []
