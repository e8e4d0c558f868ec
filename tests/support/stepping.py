"""Step a program, one instruction at a time, from one of its breakpoint instructions to the next, and examine every state of a call.

This process is the tracer: the registers of a stopped thread come from ptrace, its memory from /proc, as in findleaks.target.live.
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
    """Threads that this process already traces, and keeps stopped."""

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
        """Do nothing: the caller decides when the thread continues."""


class _Target(LiveTarget):
    """A target that does not let the process continue by itself, so that the result belongs to the requested instruction. If `onward` is
    given, it is called instead."""

    onward: Optional[Callable[[], None]] = None

    def run_on(self, seconds: float) -> bool:
        if self.onward is None:
            return False
        self.onward()
        self._pages.clear()
        self._open()
        return True


class Stepped:
    """`command`, run up to its first breakpoint instruction. Only the main thread is traced, and only it runs."""

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
        """Step to the next breakpoint instruction, and yield the number of executed instructions before each instruction number that is
        `first` plus a multiple of `every`."""
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
        """Return a session of the current state. Close it before the next step. `onward` is called when the session lets the process
        continue."""
        self.tracer.look()
        target = _Target(self.process.pid)
        target._tracer = self.tracer
        target.onward = onward
        return Session(target)

    def go(self, count: int) -> None:
        """Execute this number of instructions."""
        for _ in range(count):
            self.tracer.ask(SINGLESTEP)
            self._wait()
        self.count += count
        self.tracer.look()

    def core(self, path: Path, signal_info: Sequence[int] = (), old: str = "", new: str = "") -> Path:
        """Write a core of the current state. If a signal ended the process, the core has the first words of siginfo_t (si_signo, si_errno,
        si_code). File names that end in `old` end in `new` in the core."""
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
        """Overwrite a word of the program's memory, to damage it."""
        with open(f"/proc/{self.process.pid}/mem", "r+b", 0) as memory:
            os.pwrite(memory.fileno(), word.to_bytes(8, "little"), address)

    def read(self, address: int) -> int:
        """Return a word of the program's memory."""
        with open(f"/proc/{self.process.pid}/mem", "rb", 0) as memory:
            return int.from_bytes(os.pread(memory.fileno(), 8, address), "little")

    def pc(self) -> int:
        self.tracer.look()
        return self.tracer.threads[0].pc

    def _byte(self, address: int) -> bytes:
        with open(f"/proc/{self.process.pid}/mem", "rb", 0) as memory:
            return os.pread(memory.fileno(), 1, address)

    def _wait(self) -> None:
        _, status = os.waitpid(self.process.pid, WALL)
        assert os.WIFSTOPPED(status) and os.WSTOPSIG(status) == signal.SIGTRAP, f"stopped by {status:#x}"
