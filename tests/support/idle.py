"""Waits until a process has come to rest: all its threads sleep, and none has run for a while."""

from __future__ import annotations

import os
import time
from pathlib import Path

PATIENCE = 120.0
REST_SECONDS = 0.15
"""Seconds in which no thread may have run. A thread that waits for a processor is not asleep ("R"), however busy the machine is."""


def wait_until_idle(pid: int) -> None:
    limit = time.monotonic() + PATIENCE
    before = None
    while True:
        now = _looked_at(pid)
        if now == before and all(state in "SI" for _, state, _ in now):
            return
        assert time.monotonic() < limit, f"pid {pid} does not come to rest: {now}"
        before = now
        time.sleep(REST_SECONDS)


def _looked_at(pid: int) -> list[tuple[str, str, str]]:
    """Each thread with its state and the nanoseconds that it has run."""
    found = []
    for tid in sorted(os.listdir(f"/proc/{pid}/task")):
        task = Path(f"/proc/{pid}/task/{tid}")
        found.append((tid, (task / "stat").read_text().rpartition(")")[2].split()[0], (task / "schedstat").read_text().split()[0]))
    return found
