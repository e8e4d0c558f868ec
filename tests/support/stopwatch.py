"""Time that passes for processes as on a machine of their own: without what they waited for a processor that others had."""

from __future__ import annotations

import os
import time
from pathlib import Path


class Stopwatch:
    """Runs from its making on, for this process and for `pids` with all their descendants."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self._queued = self._delay()
        self._start = time.monotonic()

    def seconds(self) -> float:
        """Those since then, but for the ones in which threads could have run and no processor was free."""
        passed = time.monotonic() - self._start
        return passed - (self._delay() - self._queued)

    def _delay(self) -> float:
        """Seconds that all threads spent on run queues since they began."""
        own = [int(task) for task in os.listdir("/proc/self/task")]
        return sum(map(_queued, own)) + sum(_queued(task) for pid in self._pids for task in tasks(pid))


def tasks(pid: int) -> list[int]:
    """The threads of a process, and those of its descendants."""
    try:
        own = [int(task) for task in os.listdir(f"/proc/{pid}/task")]
        children = [int(child) for task in own for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    except OSError:
        return []  # it has ended
    return own + [task for child in children for task in tasks(child)]


def _queued(task: int) -> float:
    """Seconds that a thread spent on a run queue: the second field (Documentation/scheduler/sched-stats.rst of Linux 6.1)."""
    try:
        return int(Path(f"/proc/{task}/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0
