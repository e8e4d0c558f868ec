"""Threads of a JVM that wake up periodically do not count when tests wait until a program is idle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from counts import until

from cores import all_sleep, threads

PROGRAM = """
import ctypes, threading, time
def work():
    ctypes.CDLL(None).prctl(15, b"VM Periodic Tas", 0, 0, 0)  # PR_SET_NAME
    print(threading.get_native_id(), flush=True)
    while True:
        time.sleep(0.0005)
threading.Thread(target=work, daemon=True).start()
ctypes.CDLL(None).prctl(15, b"a) R (b", 0, 0, 0)
time.sleep(600)
"""


def test_threads_that_wake_up_periodically_are_left_out() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            periodic = process.stdout.readline().strip()
            until(lambda: all_sleep(process.pid), "the main thread's rest")
            until(
                lambda: {tid: state for tid, (state, _) in threads(process.pid).items()} == {str(process.pid): "S"},
                "one thread that sleeps",
            )
            assert {task.name for task in Path(f"/proc/{process.pid}/task").iterdir()} == {str(process.pid), periodic}
        finally:
            process.kill()
    assert threads(process.pid) == {}
