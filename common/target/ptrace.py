"""Stopping a process, reading its threads' registers, and letting it run on, with ptrace(2).

PTRACE_SEIZE and PTRACE_INTERRUPT send no signal and leave a process that was stopped stopped. Signals that arrive meanwhile stay
queued, and one that a thread was just about to take is handed back on detaching. Should this process die, the kernel detaches.
As with any debugger, a system call that never restarts (epoll_wait, see signal(7)) returns EINTR in the process.
All calls must come from the thread that attached.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from typing import Any, Optional

from findleaks.arch import Arch
from findleaks.errors import TargetError
from findleaks.target.base import Thread
from findleaks.target.notes import NT_PRSTATUS, thread

_DETACH, _GETREGSET, _SEIZE, _INTERRUPT = 17, 0x4204, 0x4206, 0x4207
_WALL = 0x40000000
_EVENT_STOP = 128
_PATIENCE = 2.0
"""Seconds to wait for a thread to stop. One in an uninterruptible sleep (vfork's parent, a dead file server) does not."""
_MOST_PASSES = 10_000


class _Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class Tracer:
    """The threads of one process, stopped. `release()` lets them run on, once or more often, and must be called."""

    def __init__(self, pid: int, arch: Arch) -> None:
        self.pid = pid
        self.arch = arch
        self.warnings: list[str] = []
        self.threads: list[Thread] = []
        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self._libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self._libc.ptrace.restype = ctypes.c_long
        self._stops: dict[int, Optional[int]] = {}  # thread -> signal to hand back; None: it has not stopped yet

    def stop(self) -> None:
        """Stop every thread, also those that are born meanwhile, and read the registers. TargetError if that is refused."""
        try:
            for _ in range(_MOST_PASSES):
                new = [tid for tid in tasks(self.pid) if tid not in self._stops]
                if not new:
                    break
                for tid in new:
                    self._seize(tid)
                deadline = time.monotonic() + _PATIENCE
                for tid in new:
                    if tid in self._stops:
                        self._wait(tid, deadline)
            if not self._stops:
                raise TargetError(f"pid {self.pid}: the process has ended")
            stuck = sorted(tid for tid, signal in self._stops.items() if signal is None)
            if stuck:
                names = ", ".join(map(str, stuck[:3])) + (f" and {len(stuck) - 3} more" if len(stuck) > 3 else "")
                self.warnings.append(
                    f"pid {self.pid}: {len(stuck)} of {len(self._stops)} threads are in an uninterruptible sleep ({names}): only part of "
                    "their registers is known, and what only the rest refers to looks lost."
                )
            found = [self._thread(tid, signal is not None) for tid, signal in sorted(self._stops.items())]
            self.threads = sorted((t for t in found if t is not None), key=lambda t: (t.tid != self.pid, t.tid))
        except BaseException:
            self.release()
            raise

    def _ptrace(self, request: int, tid: int, addr: int = 0, data: int = 0) -> int:
        """0, or the errno."""
        if self._libc.ptrace(request, tid, addr, data) == -1:
            return ctypes.get_errno()
        return 0

    def _seize(self, tid: int) -> None:
        if state(self.pid, tid) in "ZX":  # a main thread that ended before the others stays as a zombie
            self._stops[tid] = 0
            return
        self._stops[tid] = None  # before it is true: a Ctrl-C may come between the two
        error = self._ptrace(_SEIZE, tid)
        if error == 0:
            error = self._ptrace(_INTERRUPT, tid)
        if error:
            self._stops.pop(tid)
            if error == errno.ESRCH or (error == errno.EPERM and state(self.pid, tid) in "ZX"):
                if state(self.pid, tid) in "ZX":
                    self._stops[tid] = 0
                return
            raise TargetError(refusal(self.pid, error))

    def _wait(self, tid: int, deadline: float) -> None:
        pause = 0.0001
        while True:
            try:
                got, status = os.waitpid(tid, _WALL | os.WNOHANG)
            except ChildProcessError:
                self._stops.pop(tid, None)
                return
            if got:
                if not os.WIFSTOPPED(status):
                    self._stops.pop(tid, None)
                elif status >> 16 == _EVENT_STOP:
                    self._stops[tid] = 0
                else:
                    self._stops[tid] = os.WSTOPSIG(status)
                return
            if time.monotonic() > deadline:
                return
            time.sleep(pause)
            pause = min(2 * pause, 0.01)

    def _thread(self, tid: int, stopped: bool) -> Optional[Thread]:
        size = len(self.arch.registers) * self.arch.word
        registers = self._regset(tid, NT_PRSTATUS, size) if stopped else b""
        if len(registers) < size:
            return sleeping(self.pid, tid, self.arch) if state(self.pid, tid) not in "ZX" else None
        extra = [self._regset(tid, note, 1 << 14) for note in self.arch.extra_register_notes]
        return thread(self.arch, tid, registers, [e for e in extra if e])

    def _regset(self, tid: int, note: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        vector = _Iovec(ctypes.addressof(buffer), size)
        if self._ptrace(_GETREGSET, tid, note, ctypes.addressof(vector)):
            return b""
        return buffer.raw[: vector.len]

    def release(self) -> None:
        """Let every thread run on. A Ctrl-C that comes meanwhile is raised when that is done."""
        late: Optional[BaseException] = None
        while self._stops:
            try:
                tid, signal = next(iter(self._stops.items()))
                if signal is None:
                    self._ptrace(_INTERRUPT, tid)
                    self._wait(tid, time.monotonic() + 0.2)
                    signal = self._stops.get(tid) or 0
                self._ptrace(_DETACH, tid, 0, signal)
                self._stops.pop(tid, None)
            except KeyboardInterrupt as error:
                late = error
        if late is not None:
            raise late


def tasks(pid: int) -> list[int]:
    """The thread ids of a process, ascending; [] when it is gone."""
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []


def state(pid: int, tid: int) -> str:
    """The one-letter state of a thread ("R", "S", "D", "T", "t", "Z" …), "X" when it is gone."""
    try:
        with open(f"/proc/{pid}/task/{tid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return "X"


def status(pid: int) -> dict[str, str]:
    """The lines of /proc/PID/status; {} when the process is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return {key: value.strip() for key, _, value in (line.partition(":") for line in file)}
    except OSError:
        return {}


def sleeping(pid: int, tid: int, arch: Arch) -> Optional[Thread]:
    """What /proc/PID/task/TID/syscall tells of a thread that we cannot stop: the call's arguments, sp and pc. None if nothing."""
    try:
        with open(f"/proc/{pid}/task/{tid}/syscall", encoding="ascii") as file:
            fields = file.read().split()
        values = [int(field, 16) for field in fields[1:]]
    except (OSError, ValueError):
        return None
    if len(values) < 2:
        return None
    sp, pc = values[-2:]
    return Thread(tid, {arch.sp: sp, arch.pc: pc}, sp, pc, 0, tuple(values))


def refusal(pid: int, error: int) -> str:
    """Why the kernel refused us the process, and what to do."""
    if error == errno.ESRCH:
        return f"pid {pid}: there is no such process"
    if error not in (errno.EPERM, errno.EACCES):
        return f"pid {pid}: cannot be attached to: {os.strerror(error).lower()}"
    lines = status(pid)
    tracer = lines.get("TracerPid", "0")
    if tracer not in ("0", ""):
        name = status(int(tracer)).get("Name", "") if tracer.isdigit() else ""
        return f"pid {pid}: already held by {name or 'a tracer'} (pid {tracer}): quit that first, or use findleaks inside it"
    owner = lines.get("Uid", "").split()[:1]
    whose = f", the process is user {owner[0]}'s" if owner and owner[0] != str(os.geteuid()) else ""
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope", encoding="ascii") as file:
            scope = file.read().strip()
    except OSError:
        scope = "0"
    if scope == "3":
        return f"pid {pid}: not permitted: ptrace is switched off until the next boot (kernel.yama.ptrace_scope = 3): use a core file"
    cure = "run as root, or with CAP_SYS_PTRACE"
    if scope == "1":
        cure += ", or set kernel.yama.ptrace_scope to 0"
    return f"pid {pid}: not permitted{whose}: {cure}" + (f" (kernel.yama.ptrace_scope is {scope})" if scope != "0" else "")
