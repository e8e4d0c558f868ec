"""The stopwatch of tests: it counts work and sleep, but not the wait for a processor, so that tests do not fail on a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import stopwatch
from stopwatch import tasks

BUSY = [sys.executable, "-c", "while True: pass"]


@pytest.fixture
def crowd() -> Iterator[None]:
    """Start four busy processes on the same processor as this process."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    neighbours = [subprocess.Popen(BUSY) for _ in range(4)]
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        for one in neighbours:
            one.kill()
            one.wait()


def measure(code: str) -> list[float]:
    """Run code in a process with one thread, and return its output. With several threads, the waits for a processor may
    overlap, and all of them are subtracted."""
    line = f"import time; from stopwatch import Stopwatch; {code}"
    path = {**os.environ, "PYTHONPATH": str(Path(stopwatch.__file__).parent)}
    done = subprocess.run([sys.executable, "-c", line], env=path, capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


@pytest.mark.usefixtures("crowd")
def test_waiting_for_a_processor_does_not_count() -> None:
    work = "watch, start, spent = Stopwatch(), time.monotonic(), time.process_time()\nwhile time.process_time() - spent < 0.3: pass"
    counted, passed = measure(f"{work}\nprint(watch.seconds(), time.monotonic() - start)")
    assert 0.29 < counted < passed / 2


def test_sleep_counts() -> None:
    (counted,) = measure("watch = Stopwatch(); time.sleep(0.2); print(watch.seconds())")
    assert counted > 0.19


def test_other_processes_count_with_their_descendants() -> None:
    """Their wait is the sum of the waits that Linux reports for each of their threads."""
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'print(1, flush=True); input()']).wait()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert {process.pid, int(child)} == set(tasks(process.pid))
        process.communicate(b"\n")
    assert tasks(process.pid) == []
