"""System calls of a thread that findleaks holds by PTRACE_SEIZE, including clone(2).

Unlike remote_syscall.py, which shares the process with a debugger, this module runs the thread from
one system call stop to the next: no signal is raised in the process, and only the `syscall`
instruction is executed. The thread is in a PTRACE_EVENT_STOP again when its registers are restored,
so the kernel restarts an interrupted system call as after any such stop. Sources: ptrace(2); Linux
arch/x86/kernel/signal.c (arch_do_signal_or_restart), kernel/rseq.c,
include/uapi/linux/{ptrace,rseq,sched}.h."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Optional

from findleaks.errors import TargetError
from findleaks.injection.requests import ARGUMENTS, CS, M64, ORIG_RAX, RAX, RDI, RIP, WALL, Requests
from findleaks.target.encoded_numbers import decode_signed

# Numbers of system calls (Linux arch/x86/entry/syscalls/syscall_64.tbl).
CLOSE, CLONE, WAIT4, EXIT_GROUP, UNSHARE, CLOSE_RANGE = 3, 56, 61, 231, 272, 436
CLONE_FILES = 0x400

_CONT, _SYSCALL_STOP, _DETACH, _SETOPTIONS, _GETEVENTMSG, _INTERRUPT = 7, 24, 17, 0x4200, 0x4201, 0x4207
_RSEQ_CONFIGURATION, _DISPATCH_CONFIGURATION = 0x420F, 0x4211  # Linux 5.13, 6.4
_SYSGOOD, _TRACECLONE, _EXITKILL = 1, 8, 1 << 20  # PTRACE_O_…
_EVENT_CLONE, _EVENT_STOP = 3, 128
_AT_SYSCALL = signal.SIGTRAP | 0x80  # stop signal with PTRACE_O_TRACESYSGOOD
_USER_CS = 0x33  # code segment of 64-bit code
_RESTARTED = range(-516, -511)  # ERESTART…: a signal arrived before the call had an effect
_MOST_TRIES = 10
_SYSCALL = b"\x0f\x05"
_RSEQ_CS = 8  # offset in struct rseq
_RSEQ_RANGE = struct.Struct("<8xQQ")  # struct rseq_cs: start_ip, post_commit_offset

Read = Callable[[int, int], bytes]


class SeizedThread(Requests):
    """A thread of process `pid`, in a PTRACE_EVENT_STOP. `instruction`: the address of a `syscall`
    instruction in the process."""

    def __init__(self, pid: int, tid: int, instruction: int) -> None:
        super().__init__()
        self.pid, self.tid, self.instruction = pid, tid, instruction
        self._cloned: Optional[int] = None

    def call(self, number: int, *arguments: int, kill: bool = False) -> int:
        """Make a system call. Returns its result, or a negative errno. Raises TargetError if the
        call could not be made. `kill`: whether the kernel kills the process if findleaks dies
        during the call."""
        for _ in range(_MOST_TRIES):
            result = self._once(number, arguments, _EXITKILL if kill else 0)
            if result not in _RESTARTED:
                return result
        raise TargetError("signals interrupt its system calls again and again")

    def clone(self, flags: int) -> tuple[int, int]:
        """Create a process. Returns its id here, and its id in the pid namespace of its parent. On
        failure the first is 0, and the second is a negative errno.
        The new process is traced, is stopped, blocks all signals, and sends none when it ends. It
        never executes code of its parent: when it is released, or when findleaks is dead, it calls
        exit_group(0)."""
        self._cloned = None
        result = self.call(CLONE, flags, 0, 0, 0, 0)
        return (self._cloned or 0), result

    def park(self) -> None:
        """Point the thread at a call of exit_group(0), which it executes when it runs."""
        words = list(self._registers())
        words[RAX], words[RDI], words[RIP], words[ORIG_RAX] = EXIT_GROUP, 0, self.instruction, M64
        self.set_registers(self.tid, words)
        self.set_signal_mask(self.tid, M64)

    def end(self) -> None:
        """Let a parked process exit, and wait for its end. A process that has already ended is
        ignored."""
        if not self.attempt(_CONT, self.tid):
            self.attempt(_DETACH, self.tid)
        try:
            while os.WIFSTOPPED(os.waitpid(self.tid, WALL)[1]):
                self.attempt(_CONT, self.tid)
        except ChildProcessError:
            pass

    def look(self) -> None:
        """Detect whether a stopped process was killed by SIGKILL."""
        try:
            os.waitpid(self.tid, WALL | os.WNOHANG)
        except ChildProcessError:
            pass

    def _once(self, number: int, arguments: Iterable[int], options: int) -> int:
        before: Sequence[int] = ()
        mask, stopped = 0, False
        try:
            before, mask = self._registers(), self.signal_mask(self.tid)
            self.set_signal_mask(self.tid, M64)  # SIGKILL and SIGSTOP cannot be blocked
            self._options(_SYSGOOD | _TRACECLONE | options)
            words = list(before)
            words[RAX], words[RIP] = number, self.instruction
            words[ORIG_RAX] = M64  # prevents the restart of an interrupted system call
            for register, value in zip(ARGUMENTS, arguments):
                words[register] = value & M64
            self.set_registers(self.tid, words)
            stopped |= self._run(_SYSCALL_STOP, _AT_SYSCALL)
            stopped |= self._run(_SYSCALL_STOP, _AT_SYSCALL)
            result = decode_signed(self._registers()[RAX], 64)
            # The kernel restarts an interrupted system call only if the thread is resumed from this
            # stop.
            self.attempt(_INTERRUPT, self.tid)
            stopped |= self._run(_CONT, _EVENT_STOP)
        except ChildProcessError:
            before = ()
            raise TargetError(f"pid {self.pid}: the process has ended") from None
        finally:
            if before:
                self.set_registers(self.tid, before)
                self.set_signal_mask(self.tid, mask)
                self._options(0)
                if stopped:  # the thread stops when it is resumed
                    self.libc.tgkill(self.pid, self.tid, signal.SIGSTOP)
        return result

    def _run(self, request: int, until: int) -> bool:
        """Resume the thread until it stops at `until`. Returns whether it received a SIGSTOP, which
        is withheld from it. Raises ChildProcessError if the thread has ended."""
        stopped = False
        while True:
            self.attempt(request, self.tid)  # fails if the thread is dying: see below
            _, how = os.waitpid(self.tid, WALL)
            if not os.WIFSTOPPED(how):
                raise ChildProcessError
            event, number = how >> 16, os.WSTOPSIG(how)
            if event == _EVENT_CLONE:
                self._adopt()
            elif until in (event, number):
                return stopped
            elif not event:
                stopped |= number == signal.SIGSTOP

    def _adopt(self) -> None:
        """Park the process that the thread has just created."""
        message = ctypes.c_ulong()
        self.require(" made no process", _GETEVENTMSG, self.tid, 0, ctypes.addressof(message))
        self._cloned = child = message.value
        made = SeizedThread(child, child, self.instruction)
        try:
            _, how = os.waitpid(child, WALL)
            if os.WIFSTOPPED(how):
                made._options(0)
                made.park()
        except ChildProcessError:  # the thread was just killed; its reader will detect this
            pass

    def _options(self, options: int) -> None:
        self.attempt(_SETOPTIONS, self.tid, 0, options)

    def _registers(self) -> tuple[int, ...]:
        words = self.registers(self.tid)
        if words is None:
            raise ChildProcessError
        return words


def instruction_at(words: tuple[int, ...], read: Read) -> int:
    """Return the address of the `syscall` instruction that a thread with these registers is
    executing; 0 if there is none."""
    at = words[RIP] - len(_SYSCALL)
    return at if decode_signed(words[ORIG_RAX], 64) >= 0 and read(at, 2) == _SYSCALL else 0


def unsuitable(requests: Requests, tid: int, words: tuple[int, ...], read: Read) -> str:
    """Explain why this stopped thread must not make system calls for findleaks; "" if it may. The
    reason may no longer apply after the thread has been resumed."""
    if words[CS] != _USER_CS:
        return "it executes 32-bit code"
    buffer = ctypes.create_string_buffer(32)
    if requests.attempt(_DISPATCH_CONFIGURATION, tid, 32, ctypes.addressof(buffer)) and any(buffer.raw[:8]):
        return "its system calls are dispatched to the process (PR_SET_SYSCALL_USER_DISPATCH)"
    if decode_signed(words[ORIG_RAX], 64) >= 0:  # no restartable sequence has system calls
        return ""
    if not requests.attempt(_RSEQ_CONFIGURATION, tid, 24, ctypes.addressof(buffer)):
        return "it is not in a system call, and this kernel does not report whether it is in a restartable sequence"
    (area,) = struct.unpack_from("<Q", buffer.raw)
    described = int.from_bytes(read(area + _RSEQ_CS, 8), "little") if area else 0
    found = read(described, 24) if described else b""
    if len(found) == 24:
        start, length = _RSEQ_RANGE.unpack(found)
        if start <= words[RIP] < start + length:
            return "it is in a restartable sequence (rseq)"
    return ""
