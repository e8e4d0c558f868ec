"""Run a program until it prints "ready", then have the kernel or gcore write a core, or examine it live."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Optional

READY = "ready\n"
PATIENCE = 180.0
"""Seconds to wait for a program or a core, even on a busy machine."""


PERIODIC = {b"VM Periodic Tas", b"Monitor Deflati", b"G1 Service", b"ZDirector", b"ZStat"}
"""Names of JVM threads that run briefly many times a second, even if the program is idle."""


class Running:
    """A program that runs in its own folder and has printed "ready" to its standard output. It is ended at the end of the `with` block."""

    def __init__(
        self, command: Sequence[str], folder: Path, environment: Optional[Mapping[str, str]] = None, stdin: int = subprocess.DEVNULL
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._out = folder / "stdout"
        with open(self._out, "ab") as out, open(folder / "stderr", "ab") as err:
            self._process = subprocess.Popen(
                list(command), cwd=folder, stdin=stdin, stdout=out, stderr=err, preexec_fn=_allow_cores, env=environment
            )
        self.pid = self._process.pid
        self.output = self._wait()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def gcore(self) -> Path:
        """Write a core with GDB's gcore; the program continues to run."""
        done = subprocess.run(
            ["gcore", "-o", "gcore", str(self.pid)], cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE * 4
        )
        made = self.folder / f"gcore.{self.pid}"
        if not made.exists():
            raise RuntimeError(f"gcore made no core: {done.stdout}{done.stderr}")
        return made

    def kernel_core(self) -> Path:
        """Have the kernel write a core; this ends the program. Needs a kernel.core_pattern that names a file in the working folder."""
        pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
        if pattern.startswith("|") or "/" in pattern:
            raise RuntimeError(f"kernel.core_pattern is {pattern!r}: this test needs `sysctl -w kernel.core_pattern=core`")
        os.kill(self.pid, signal.SIGABRT)
        if states(self.pid) == {"T"}:  # a suspended process handles no other signal
            os.kill(self.pid, signal.SIGCONT)
        self._process.wait(PATIENCE)
        made = sorted(self.folder.glob("core*"))
        if len(made) != 1:
            raise RuntimeError(f"expected one core in {self.folder}, found {made}")
        return made[0]

    def _wait(self) -> str:
        """Wait until the program's output ends with "ready" and every thread sleeps; return the output."""
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit:
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.folder}: ended with {self._process.returncode}: {(self.folder / 'stderr').read_text()}")
            text = self._out.read_text()
            if text.endswith(READY) and all_sleep(self.pid):
                return text
            time.sleep(0.02)
        self.__exit__(None, None, None)
        raise RuntimeError(f"{self.folder}: not ready after {PATIENCE} s")


def threads(pid: int) -> dict[str, tuple[str, str]]:
    """Return each thread's state letter, and the nanoseconds that it has run; empty if the process has ended. "R": runs or waits for a
    processor; "D": waits for a disk, for example; "t": stopped by a debugger; "T": stopped by SIGSTOP. Threads in PERIODIC are left out."""
    found = {}
    folder = f"/proc/{pid}/task"
    with contextlib.suppress(OSError):  # the process has ended
        for tid in os.listdir(folder):
            with contextlib.suppress(OSError):  # the thread has ended
                ran = _read(f"{folder}/{tid}/schedstat").split()[0]
                name, _, rest = _read(f"{folder}/{tid}/stat").rpartition(b") ")
                if name.partition(b"(")[2] not in PERIODIC:
                    found[tid] = (rest[:1].decode(), ran.decode())
    return found


def _read(path: str) -> bytes:
    """Read a small file of /proc, quickly: a process may have hundreds of threads, and all must be read before one of them runs again."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)


def states(pid: int) -> set[str]:
    return {state for state, _ in threads(pid).values()}


def all_sleep(pid: int) -> bool:
    """Return whether all threads sleep. Threads are examined one after the other, and one that was already seen asleep may be woken by a
    later one. Therefore all are examined twice: a thread that was woken has run in between."""
    before = threads(pid)
    return not {state for state, _ in before.values()} & {"R", "D"} and threads(pid) == before


def _allow_cores() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
