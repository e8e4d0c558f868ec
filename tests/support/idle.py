"""Wait until a process is idle: all its threads sleep, and none has run for some time."""

from __future__ import annotations

import time

from cores import threads

PATIENCE = 180.0
REST_SECONDS = 0.15
"""Seconds during which no thread may have run. On a busy machine, a thread that waits for a processor is not asleep ("R")."""


def wait_until_idle(pid: int) -> None:
    limit = time.monotonic() + PATIENCE
    before = None
    while True:
        now = threads(pid)
        if now == before and all(state in "SI" for state, _ in now.values()):
            return
        assert time.monotonic() < limit, f"pid {pid} does not come to rest: {now}"
        before = now
        time.sleep(REST_SECONDS)
