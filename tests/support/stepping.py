"""A program between two breakpoint instructions of its own, one instruction at a time: a look at every state that a call passes through.

The tracer is this process: a stopped thread's registers come from ptrace, its memory from /proc, as in findleaks.target.live.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Optional

import elfcore

from findleaks.session import Session
from findleaks.target.arch import ARCHES
from findleaks.target.live import LiveTarget
from findleaks.target.maps import regions_of
from findleaks.target.notes import NT_SIGINFO
from findleaks.target.ptrace import Tracer, tasks

SINGLESTEP, SEIZE = 9, 0x4206
WALL = 0x40000000
BREAKPOINT = b"\xcc"


class _Held(Tracer):
    """Threads that this very thread of ours traces, and keeps stopped."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid, ARCHES[0])

    def look(self) -> None:
        self._read, self._sleeping = [], []
        self.__dict__.pop("threads", None)
        for tid in tasks(self.pid):
            self._look(tid, True)

    def ask(self, request: int, data: int = 0) -> None:
        error = self._ptrace(request, self.pid, 0, data)
        if error:
            raise OSError(error, os.strerror(error))

    def release(self) -> None:
        """Nothing: whoever steps decides."""


class _Target(LiveTarget):
    """It does not run on by itself, so that a look is of the instruction it was asked for; or `onward` does it."""

    onward: Optional[Callable[[], None]] = None

    def run_on(self, seconds: float) -> bool:
        if self.onward is None:
            return False
        self.onward()
        self._pages.clear()
        self._open()
        return True


class Stepped:
    """`command` run up to its first breakpoint instruction. Only its main thread is traced, and runs."""

    def __init__(self, command: Sequence[str], environment: Optional[Mapping[str, str]] = None) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self.tracer = _Held(self.process.pid)
        self.count = 0

    def __enter__(self) -> Stepped:
        assert self.process.stdout is not None and self.process.stdin is not None
        assert self.process.stdout.readline() == b"ready\n"
        self.tracer.ask(SEIZE)
        self.process.stdin.write(b"x")
        self.process.stdin.flush()
        self._wait()
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.process.kill()
        self.process.communicate()

    def steps(self, every: int = 1, first: int = 0) -> Iterator[int]:
        """Counts instructions up to the next breakpoint instruction, stopping before each that is `every` times a number plus `first`."""
        while True:
            if self.count % every == first % every:
                yield self.count
            pc = self.pc()
            self.tracer.ask(SINGLESTEP)
            self._wait()
            self.count += 1
            if self.pc() == pc + 1 and self._byte(pc) == BREAKPOINT:
                return

    def session(self, onward: Optional[Callable[[], None]] = None) -> Session:
        """What findleaks sees now. Close it before the next step. `onward` is called where it lets the process run on."""
        self.tracer.look()
        target = _Target(self.process.pid)
        target._tracer = self.tracer
        target.onward = onward
        return Session(target)

    def go(self, count: int) -> None:
        """That many instructions on."""
        for _ in range(count):
            self.tracer.ask(SINGLESTEP)
            self._wait()
        self.count += count
        self.tracer.look()

    def core(self, path: Path, signal_info: Sequence[int] = (), old: str = "", new: str = "") -> Path:
        """A core of this moment, with siginfo_t's first words (si_signo, si_errno, si_code) where a signal ended the process. Files whose
        names end in `old` end in `new` there."""
        self.tracer.look()
        loads, mapped = [], []
        with open(f"/proc/{self.process.pid}/mem", "rb", 0) as memory, open(f"/proc/{self.process.pid}/maps", "rb") as maps:
            for region in regions_of(maps.read()):
                if region.readable and not region.name.startswith("[v"):
                    mode = "r" + ("w" if region.writable else "-") + ("x" if region.executable else "-")
                    data = os.pread(memory.fileno(), region.size, region.start)
                    loads.append(elfcore.Load(region.start, region.size, data, mode))
                    name = region.name.replace(old, new) if old else region.name
                    mapped += [(region.start, region.end, region.file_offset, name)] if name.startswith("/") else []
        info = [(b"CORE", NT_SIGINFO, struct.pack("<3i", *signal_info).ljust(128, b"\0"))] if signal_info else []
        tasks = [elfcore.Task(thread.tid, thread.registers, info) for thread in self.tracer.threads]
        path.write_bytes(elfcore.core(loads, tasks, pid=self.process.pid, mapped=mapped))
        return path

    def write(self, address: int, word: int) -> None:
        """Overwrite a word of the program's memory: damage."""
        with open(f"/proc/{self.process.pid}/mem", "r+b", 0) as memory:
            os.pwrite(memory.fileno(), word.to_bytes(8, "little"), address)

    def pc(self) -> int:
        self.tracer.look()
        return self.tracer.threads[0].pc

    def _byte(self, address: int) -> bytes:
        with open(f"/proc/{self.process.pid}/mem", "rb", 0) as memory:
            return os.pread(memory.fileno(), 1, address)

    def _wait(self) -> None:
        _, status = os.waitpid(self.process.pid, WALL)
        assert os.WIFSTOPPED(status) and os.WSTOPSIG(status) == signal.SIGTRAP, f"stopped by {status:#x}"
