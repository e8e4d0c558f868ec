"""Stop a process with ptrace(2), read its threads' registers, and resume it.

PTRACE_SEIZE and PTRACE_INTERRUPT send no signal. A process that was already stopped stays stopped
afterwards. Signals that arrive during the stop stay queued; a signal that a thread was about to
receive is passed on at detach. If findleaks dies, the kernel detaches. As with any debugger, a
system call that never restarts (epoll_wait, see signal(7)) returns EINTR in the process.

The kernel accepts ptrace requests only from the thread that attached, and detaches when that thread
ends. Therefore one thread, started for this purpose, makes all ptrace requests. Ctrl-C does not
interrupt this thread. When it ends, the kernel also detaches from threads that never stopped."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import time
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable
from functools import cached_property
from typing import Any, Optional

from findleaks.errors import TargetError
from findleaks.formatting import some
from findleaks.target.arch import Arch
from findleaks.target.base import Thread, order_threads
from findleaks.target.files import read_file
from findleaks.target.notes import NT_PRSTATUS, RegisterNotes, thread
from findleaks.target.stop_record import stat_field, stat_of

_DETACH, _GETREGSET, _SEIZE, _INTERRUPT = 17, 0x4204, 0x4206, 0x4207  # PTRACE_…
_WALL = 0x40000000  # __WALL of waitpid(2)
_EVENT_STOP = 128  # PTRACE_EVENT_STOP
_PF_KTHREAD = 0x200000
_PATIENCE = 2.0  # seconds to wait for threads in uninterruptible sleep (vfork, dead file server)
_MOST_PASSES = 10_000  # most passes over the list of threads until no new threads appear
NOT_TRACED = -1  # the thread has ended, or was never attached


class _Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


def ptrace_library() -> Any:
    """Load the C library with the types of ptrace(2), which returns -1 and sets errno on
    failure."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    return libc


class Tracer:
    """The threads of one process, stopped until `release()`.
    `release()` must be called; any thread may call it, repeatedly."""

    def __init__(self, pid: int, arch: Arch) -> None:
        self.pid = pid
        self.arch = arch
        self.warnings: list[str] = []
        self._read: list[RegisterNotes] = []
        self._sleeping: list[Thread] = []  # threads that did not stop
        self._libc = ptrace_library()
        # By thread: the signal to pass on at detach; 0: none; None: the thread did not stop;
        # NOT_TRACED.
        self.stops: dict[int, Optional[int]] = {}
        self._error: Optional[BaseException] = None
        # Plain locks, with which two threads take turns: each thread releases the lock that the
        # other thread waits for. A Ctrl-C cannot break them, but it can break
        # threading.Event and Thread.join.
        self._stopped, self._let_go, self._over = allocate_lock(), allocate_lock(), allocate_lock()
        for lock in (self._stopped, self._let_go, self._over):
            lock.acquire()
        self._during: Optional[Callable[[], Optional[bool]]] = None
        self._begun = self._done = False
        self.cancelled = False  # set by `release`: work during the stop should end
        self.seconds = 0.0  # duration of the stop in seconds; set when the process is resumed

    @cached_property
    def threads(self) -> list[Thread]:
        """Return the stopped threads, the main thread first. They are decoded on first use, not
        during the stop."""
        made = [thread(self.arch, one.tid, one.general, one.extra) for one in self._read]
        return order_threads([*made, *self._sleeping], self.pid)

    def register_notes(self) -> list[RegisterNotes]:
        """Return the registers of `threads`, in the same order, as in a core. If a thread did not
        stop, all its registers are zeros except the stack pointer and the program counter."""
        names, form = self.arch.registers, self.arch.word_format
        made = list(self._read)
        for one in self._sleeping:
            words = [one.registers.get(name, 0) for name in names]
            made.append(RegisterNotes(one.tid, 0, struct.pack(f"{form[0]}{len(words)}{form[1]}", *words), ()))
        return sorted(made, key=lambda one: (one.tid != self.pid, one.tid))

    def stop(self, during: Optional[Callable[[], Optional[bool]]] = None) -> None:
        """Stop every thread, including threads that start during this call, and read the registers.
        Then call `during` in the tracing thread, because only that thread can make ptrace requests.
        If `during` returns true, or raises, the process is resumed immediately. Raises TargetError
        if the kernel refuses."""
        self._during = during
        try:
            # threading.Thread would keep the interpreter from exiting. If release() is never
            # called, the kernel detaches at exit.
            start_new_thread(self._work, ())
            self._stopped.acquire()
            if self._error is not None:
                raise self._error
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Resume every thread. A Ctrl-C that arrives during this call is raised at its end."""
        late: Optional[BaseException] = None
        self.cancelled = True
        limit = time.monotonic() + _PATIENCE
        while not self._done and (self._begun or time.monotonic() < limit):
            try:
                if self._let_go.locked():
                    self._let_go.release()
                self._over.acquire(timeout=0.2)
            except KeyboardInterrupt as error:
                late = error
        if late is not None:
            raise late

    def _work(self) -> None:
        self._begun = True
        over: Optional[bool] = False
        since = time.monotonic()
        try:
            if not self.cancelled:
                self.stop_all()
                if self._during is not None:
                    over = self._during()
        except BaseException as error:
            self._error = error
            over = True
        if not over:
            self._stopped.release()
            self._let_go.acquire()
        self.detach_all()
        self.seconds = time.monotonic() - since
        self._done = True
        self._over.release()
        if over:
            self._stopped.release()

    def stop_all(self, patience: float = _PATIENCE) -> None:
        """Stop every thread and read the registers. The caller must make all ptrace requests in one
        thread. Threads in uninterruptible sleep have `patience` seconds to stop. Raises TargetError
        if the kernel refuses. The caller must call `detach_all` also in this case."""
        for _ in range(_MOST_PASSES):
            new = [tid for tid in tasks(self.pid) if tid not in self.stops]
            if not new or self.cancelled:
                break
            for tid in new:
                self._seize(tid)
            deadline = time.monotonic() + patience
            for tid in new:
                if self.stops[tid] is None:
                    self._wait(tid, deadline)
        if all(signal == NOT_TRACED for signal in self.stops.values()):
            raise TargetError(f"pid {self.pid}: the process has ended")
        stuck = sorted(tid for tid, signal in self.stops.items() if signal is None)
        if stuck:
            self.warnings.append(
                f"pid {self.pid}: {len(stuck)} of {len(self.stops)} threads sleep uninterruptibly ({some([str(tid) for tid in stuck])}): "
                "part of their registers is unknown, so blocks that only these refer to are reported as leaked."
            )
        for tid, signal in self.stops.items():
            if signal != NOT_TRACED:
                self._look(tid, signal is not None)

    def stop_one(self, tid: int, patience: float) -> bool:
        """Stop one thread, as `stop_all` does; return False if it does not stop."""
        self._seize(tid)
        if self.stops[tid] is None:
            self._wait(tid, time.monotonic() + patience)
        return self.stops[tid] not in (None, NOT_TRACED)

    def detach_all(self) -> bool:
        """Resume the threads. Return False if a thread has not stopped yet: it cannot be detached,
        and would stop when it wakes. Call this again until it returns True, or let the tracing
        thread end."""
        for tid, signal in list(self.stops.items()):
            if signal is None:
                self._wait(tid, None)
                signal = self.stops[tid]
            if signal is not None:
                del self.stops[tid]
                if signal != NOT_TRACED and self._ptrace(_DETACH, tid, 0, signal) == errno.ESRCH:
                    self._reap(tid)
        return not self.stops

    def _ptrace(self, request: int, tid: int, addr: int = 0, data: int = 0) -> int:
        """Make a ptrace request; return 0, or the errno of the failure."""
        if self._libc.ptrace(request, tid, addr, data) == -1:
            return ctypes.get_errno()
        return 0

    def _seize(self, tid: int) -> None:
        # A main thread that ended before the others stays a zombie, and is never reaped here.
        if state(self.pid, tid) in "ZX":
            self.stops[tid] = NOT_TRACED
            return
        error = self._ptrace(_SEIZE, tid)
        if error == 0:
            self.stops[tid] = None
            self._ptrace(_INTERRUPT, tid)  # fails if the thread is exiting, which waiting detects
        elif error == errno.ESRCH or state(self.pid, tid) in "ZX":
            self.stops[tid] = NOT_TRACED
        else:
            raise TargetError(explain_refusal(self.pid, error))

    def _wait(self, tid: int, deadline: Optional[float]) -> None:
        """Wait for the thread's stop; without `deadline`, poll once."""
        pause = 0.0001
        while True:
            try:
                got, status = os.waitpid(tid, _WALL | os.WNOHANG)
            except ChildProcessError:
                self.stops[tid] = NOT_TRACED
                return
            if got:
                if not os.WIFSTOPPED(status):
                    self.stops[tid] = NOT_TRACED
                elif status >> 16 == _EVENT_STOP:
                    self.stops[tid] = 0
                else:
                    self.stops[tid] = os.WSTOPSIG(status)
                return
            if deadline is None or self.cancelled:
                return
            late = time.monotonic() - deadline
            # A thread that waits for a processor gets more time, because it stops as soon as it
            # runs.
            if late > _PATIENCE or (late > 0 and state(self.pid, tid) == "D"):
                return
            time.sleep(pause)
            pause = min(2 * pause, 0.01)

    def _look(self, tid: int, stopped: bool) -> None:
        size = len(self.arch.registers) * self.arch.word
        registers = self._regset(tid, NT_PRSTATUS, size) if stopped else b""
        if len(registers) == size:
            extra = [(note, self._regset(tid, note, 1 << 14)) for note in self.arch.register_notes]
            self._read.append(RegisterNotes(tid, self.stops.get(tid) or 0, registers, [one for one in extra if one[1]]))
        elif state(self.pid, tid) not in "ZX":
            found = read_sleeping_thread(self.pid, tid, self.arch)
            if found is not None:
                self._sleeping.append(found)

    def _regset(self, tid: int, note: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        vector = _Iovec(ctypes.addressof(buffer), size)
        if self._ptrace(_GETREGSET, tid, note, ctypes.addressof(vector)):
            return b""
        return buffer.raw[: vector.len]

    def _reap(self, tid: int) -> None:
        """Reap a thread that died while it was traced. Otherwise the process would stay a
        zombie."""
        if tid == self.pid and status(tid).get("PPid") == str(os.getpid()):
            return  # the code that started this child of findleaks waits for it
        limit = time.monotonic() + 0.2
        try:
            while os.waitpid(tid, _WALL | os.WNOHANG)[0] == 0 and state(self.pid, tid) in "ZX" and time.monotonic() < limit:
                time.sleep(0.0005)
        except ChildProcessError:
            pass


def tasks(pid: int) -> list[int]:
    """Return the thread ids of a process, ascending; [] if it is gone."""
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []


def state(pid: int, tid: int) -> str:
    """Return the one-letter state of a thread ("R", "S", "D", "T", "t", "Z" …), "X" if it is
    gone."""
    try:
        return read_file(f"/proc/{pid}/task/{tid}/stat").rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return "X"


def has_ended(pid: int) -> bool:
    """Whether no thread of the process is left."""
    return all(state(pid, tid) in "ZX" for tid in tasks(pid))


def is_exiting(pid: int) -> bool:
    """Return whether the process has released its memory. This is false for kernel threads, which
    never had memory, and while other threads still run after the main thread called
    pthread_exit."""
    lines = status(pid)
    if not lines or "VmSize" in lines or is_kernel_thread(pid):
        return False
    return not any("VmSize" in status(tid) for tid in tasks(pid))


def is_kernel_thread(pid: int) -> bool:
    """Return whether PF_KTHREAD is among the flags of the process (proc_pid_stat(5), field 9;
    linux/sched.h)."""
    flags = stat_field(stat_of(f"/proc/{pid}"), 9)
    return flags is not None and bool(flags & _PF_KTHREAD)


def status(pid: int) -> dict[str, str]:
    """Return the lines of /proc/PID/status; {} if the process is gone."""
    try:
        # Split only at line feeds, because the process name may contain \r.
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace", newline="\n") as file:
            return {key: value.strip() for key, _, value in (line.partition(":") for line in file)}
    except OSError:
        return {}


def read_sleeping_thread(pid: int, tid: int, arch: Arch) -> Optional[Thread]:
    """Return a thread that cannot be stopped, as described by /proc/PID/task/TID/syscall: the
    arguments of its system call, sp and pc. None if that file is empty."""
    try:
        fields = read_file(f"/proc/{pid}/task/{tid}/syscall").split()
        values = [int(field, 16) for field in fields[1:]]
    except (OSError, ValueError):
        return None
    if len(values) < 2:
        return None
    sp, pc = values[-2:]
    return Thread(tid, {arch.sp: sp, arch.pc: pc}, sp, pc, 0, tuple(values))


def system_call(pid: int, tid: int) -> Optional[int]:
    """Return the number of the system call that a stopped thread is in; -1 if it is in none; None
    if this is unknown."""
    try:
        return int(read_file(f"/proc/{pid}/task/{tid}/syscall").split()[0])
    except (OSError, ValueError, IndexError):  # "running"
        return None


def explain_refusal(pid: int, error: Optional[int] = errno.EPERM) -> str:
    """Explain, by errno, why the kernel refused access to the process, and what to do."""
    if error in (errno.ESRCH, errno.ENOENT):
        return f"pid {pid}: there is no such process"
    if error is not None and error not in (errno.EPERM, errno.EACCES):
        return f"pid {pid}: cannot attach: {os.strerror(error).lower()}"
    lines = status(pid)
    tracer = lines.get("TracerPid", "0")
    if tracer not in ("0", ""):
        holder = status(int(tracer))
        name, tracer = holder.get("Name", ""), holder.get("Tgid", tracer)
        return f"pid {pid}: already traced by {name or 'a tracer'} (pid {tracer}); end that program first, or use findleaks inside it"
    owner = lines.get("Uid", "").split()[:1]
    whose = f", the process belongs to user {owner[0]}" if owner and owner[0] != str(os.geteuid()) else ""
    try:
        scope = read_file("/proc/sys/kernel/yama/ptrace_scope").decode().strip()
    except OSError:
        scope = "0"
    if scope == "3":
        return f"pid {pid}: not permitted: ptrace is disabled until reboot (kernel.yama.ptrace_scope = 3); use a core file"
    cure = "run as root, or with CAP_SYS_PTRACE"
    if scope == "1":
        cure += ", or set kernel.yama.ptrace_scope to 0"
    return f"pid {pid}: not permitted{whose}; {cure}" + (f" (kernel.yama.ptrace_scope is {scope})" if scope != "0" else "")
