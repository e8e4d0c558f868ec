"""Measure time without the time during which threads waited for a processor that other programs used."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path


class Stopwatch:
    """Starts when it is created. It measures this process, and `pids` with all their descendants."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self._start, self._queued = self._look()

    def seconds(self) -> float:
        """Return the seconds since the start, without the time in which threads were ready to run but no processor was free. The waits of
        threads that have ended are not known, and are included."""
        now, delays = self._look()
        return now - self._start - sum(max(delay - self._queued.get(task, 0.0), 0.0) for task, delay in delays.items())

    def _look(self) -> tuple[float, dict[int, float]]:
        """Return the time, and the delays of all threads at this time. If this thread waited for a processor between reading the two, only
        one of them would include this wait. In this case both are read again."""
        own = threading.get_native_id()
        while True:
            queued, now = _queued(own), time.monotonic()
            if _queued(own) == queued:
                return now, {**self._delays(), own: queued}

    def _delays(self) -> dict[int, float]:
        """Return the seconds that each thread has spent on run queues since its start."""
        own = [int(task) for task in os.listdir("/proc/self/task")]
        return {task: _queued(task) for task in [*own, *(task for pid in self._pids for task in tasks(pid))]}


def tasks(pid: int) -> list[int]:
    """Return the threads of a process and of its descendants, without those that end meanwhile."""
    try:
        own = [int(task) for task in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []
    return own + [task for one in own for child in _children(pid, one) for task in tasks(child)]


def _children(pid: int, task: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    except OSError:
        return []


def _queued(task: int) -> float:
    """Return the seconds that a thread has spent on a run queue: the second field (Documentation/scheduler/sched-stats.rst of Linux
    6.1)."""
    try:
        return int(Path(f"/proc/{task}/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0
