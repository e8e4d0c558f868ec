"""Time that passes for processes as on a machine of their own: without what they waited for a processor that others had."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path


class Stopwatch:
    """Runs from its making on, for this process and for `pids` with all their descendants."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self._start, self._queued = self._look()

    def seconds(self) -> float:
        """Those since then, but for the ones in which threads could have run and no processor was free. The waits of threads that
        have ended meanwhile are not known, and count as time."""
        now, delays = self._look()
        return now - self._start - sum(max(delay - self._queued.get(task, 0.0), 0.0) for task, delay in delays.items())

    def _look(self) -> tuple[float, dict[int, float]]:
        """Return the time, and the delays of all threads at this time. If this thread had to wait for a processor between the two, the wait
        would be in only one of them. Then both are read again."""
        own = threading.get_native_id()
        while True:
            queued, now = _queued(own), time.monotonic()
            if _queued(own) == queued:
                return now, {**self._delays(), own: queued}

    def _delays(self) -> dict[int, float]:
        """Seconds that each thread spent on run queues since it began."""
        own = [int(task) for task in os.listdir("/proc/self/task")]
        return {task: _queued(task) for task in [*own, *(task for pid in self._pids for task in tasks(pid))]}


def tasks(pid: int) -> list[int]:
    """The threads of a process, and those of its descendants, without what ends meanwhile."""
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
    """Seconds that a thread spent on a run queue: the second field (Documentation/scheduler/sched-stats.rst of Linux 6.1)."""
    try:
        return int(Path(f"/proc/{task}/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0
