"""`pytest --cpu-times FILE`: write the CPU seconds that each test and its child processes take.

Wall time depends on other programs and on parallel tests. CPU time varies by about ten percent only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

TICKS = os.sysconf("SC_CLK_TCK")


class CpuTimes:
    """Appends a line for each test to a file: seconds, a tab and the test's name. The first line is the time of collecting the tests."""

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
        with open(self.path, "a") as file:  # several workers append to it at the same time
            file.write(f"{now - self.before:.2f}\t{name}\n")
        self.before = now


def seconds() -> float:
    """Return the CPU seconds of this process, of its running descendants, and of those that ended and were waited for."""
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
