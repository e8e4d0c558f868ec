"""`pytest --cpu-times FILE`: the CPU seconds that each test takes, with those of the processes that it starts.

Wall time says little on a machine that runs other programs, and where tests run side by side; CPU time stays within some ten percent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

TICKS = os.sysconf("SC_CLK_TCK")


class CpuTimes:
    """Appends a line a test to a file: seconds, a tab and the test's name. The first is what collecting the tests took."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.before = 0.0

    def pytest_collection_finish(self) -> None:
        self._write("collection")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[object]:
        result = yield
        self._write(item.nodeid)
        return result

    def _write(self, name: str) -> None:
        now = seconds()
        with open(self.path, "a") as file:  # workers append to it side by side
            file.write(f"{now - self.before:.2f}\t{name}\n")
        self.before = now


def seconds() -> float:
    """CPU seconds of this process, of its descendants that run, and of those that have ended and were waited for."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        pid = int(stat.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime (man 5 proc_pid_stat)
    total, todo = 0, [os.getpid()]
    while todo:
        pid = todo.pop()
        total += ticks[pid]
        todo += children.get(pid, ())
    return total / TICKS
