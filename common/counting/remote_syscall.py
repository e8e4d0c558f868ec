"""Remote system calls: made by a stopped thread of another process, on x86-64 Linux.

The thread is single-stepped at a `syscall` instruction of the process, then its registers are
restored, so the ones that GDB has cached stay correct. Only the thread that traces the process may
use ptrace: in GDB, the one that runs Python's commands. (Linux arch/x86/entry/common.c,
arch/x86/include/asm/user_64.h; ptrace(2).)"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import time
from collections.abc import Callable, Sequence
from typing import Optional

from findleaks.counting.seccomp import Step, allowed, program
from findleaks.errors import TargetError
from findleaks.target.base import Region
from findleaks.target.control import ThreadPosition
from findleaks.target.encoded_numbers import signed
from findleaks.target.maps import regions_of
from findleaks.target.ptrace import ptrace_library, state, status, tasks

# Numbers of system calls (Linux arch/x86/entry/syscalls/syscall_64.tbl).
MMAP, MUNMAP, MADVISE, CLOSE, FTRUNCATE, MEMFD_CREATE = 9, 11, 28, 3, 77, 319

_SINGLESTEP, _GETREGS, _SETREGS, _GETSIGMASK, _SETSIGMASK = 9, 12, 13, 0x420A, 0x420B
_GET_FILTER, _MAX_FILTERS = 0x420C, 64
_WALL = 0x40000000
_FORM = struct.Struct("<27Q")  # struct user_regs_struct
_ARGUMENTS = (14, 13, 12, 7, 9, 8)  # rdi, rsi, rdx, r10, r8, r9 in struct user_regs_struct
_RAX, _ORIG_RAX, _RIP, _RSP = 10, 15, 16, 19
_M64 = (1 << 64) - 1
_ALL_BUT_TRAP = _M64 ^ 1 << signal.SIGTRAP - 1
_SYSCALL = b"\x0f\x05"
_STEP_SECONDS = 5.0


def mapped(pid: int) -> list[Region]:
    """What the process has mapped now; [] if it has ended."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            return regions_of(file.read())
    except OSError:
        return []


class Remote:
    """A process traced by the calling thread, with all threads stopped."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._libc = ptrace_library()

    def places(self) -> list[ThreadPosition]:
        """Where each thread is; TargetError if one runs."""
        found = []
        for tid in tasks(self.pid):
            words = self._registers(tid)
            if words is not None:
                found.append(ThreadPosition(tid, words[_RIP], words[_RSP]))
            elif state(self.pid, tid) not in "ZX":
                raise TargetError(f"thread {tid} is not stopped")
        return found

    def call(self, instruction: int, number: int, *arguments: int) -> int:
        """The system call's result, or a negative errno; TargetError if it cannot be made."""
        for tid in tasks(self.pid):
            words = self._registers(tid)
            if words is None:
                continue
            self._check_seccomp(tid, instruction, number, arguments)
            return self._call(tid, words, instruction, number, arguments)
        raise TargetError(f"pid {self.pid}: none of its threads is stopped")

    def _check_seccomp(self, tid: int, instruction: int, number: int, arguments: Sequence[int]) -> None:
        """TargetError where seccomp may end the process for the call, or refuse it."""
        if status(tid).get("Seccomp", "0") == "0":
            return
        filters = self._filters(tid)
        if filters is None:
            raise TargetError("the process is under seccomp, which may end it for a system call, and its filter cannot be read by us")
        if not allowed(filters, number, instruction, arguments):
            raise TargetError(f"the process is under seccomp, which does not let it make the system call {number}")

    def _filters(self, tid: int) -> Optional[list[list[Step]]]:
        """A thread's seccomp filters; None if they cannot be read."""
        found: list[list[Step]] = []
        while len(found) < _MAX_FILTERS:
            count = self._libc.ptrace(_GET_FILTER, tid, len(found), None)
            if count < 0:
                return found if found and ctypes.get_errno() == errno.ENOENT else None
            buffer = ctypes.create_string_buffer(8 * count)
            if self._libc.ptrace(_GET_FILTER, tid, len(found), ctypes.addressof(buffer)) != count:
                return None
            found.append(program(buffer.raw))
        return None

    def _call(self, tid: int, words: Sequence[int], instruction: int, number: int, arguments: Sequence[int]) -> int:
        mask = ctypes.c_uint64()
        if self._ptrace(_GETSIGMASK, tid, 8, ctypes.addressof(mask)):
            raise TargetError(f"thread {tid}: {os.strerror(ctypes.get_errno()).lower()}")
        ours = list(words)
        ours[_RAX], ours[_RIP] = number, instruction
        ours[_ORIG_RAX] = _M64  # a system call that it was in is not restarted yet
        for register, value in zip(_ARGUMENTS, arguments):
            ours[register] = value & _M64
        blocked = ctypes.c_uint64(_ALL_BUT_TRAP)
        stopped = False
        self._ptrace(_SETSIGMASK, tid, 8, ctypes.addressof(blocked))
        try:
            self._write(tid, ours)
            for _ in range(4):
                stopped |= self._step(tid) == signal.SIGSTOP
                after = self._registers(tid)
                if after is None:
                    raise TargetError(f"thread {tid} has ended")
                if after[_RIP] != instruction:
                    break
            else:
                raise TargetError(f"thread {tid} makes no system call")
        finally:
            self._write(tid, words)
            self._ptrace(_SETSIGMASK, tid, 8, ctypes.addressof(mask))
            if stopped:  # the debugger sent that SIGSTOP, and waits for it
                self._libc.tgkill(self.pid, tid, signal.SIGSTOP)
        return signed(after[_RAX], 64)

    def _step(self, tid: int) -> int:
        """Execute one instruction; the signal that stopped the thread."""
        if self._ptrace(_SINGLESTEP, tid, 0, 0):
            raise TargetError(f"thread {tid} cannot be stepped: {os.strerror(ctypes.get_errno()).lower()}")
        limit = time.monotonic() + _STEP_SECONDS
        while time.monotonic() < limit:
            try:
                got, how = os.waitpid(tid, _WALL | os.WNOHANG)
            except InterruptedError:
                continue
            except ChildProcessError:
                break
            if got and os.WIFSTOPPED(how):
                return os.WSTOPSIG(how)
            if got:
                break
            time.sleep(0.0001)
        raise TargetError(f"thread {tid} did not come back from a system call")

    def _registers(self, tid: int) -> Optional[tuple[int, ...]]:
        buffer = ctypes.create_string_buffer(_FORM.size)
        return None if self._ptrace(_GETREGS, tid, 0, ctypes.addressof(buffer)) else _FORM.unpack(buffer.raw)

    def _write(self, tid: int, words: Sequence[int]) -> None:
        buffer = ctypes.create_string_buffer(_FORM.pack(*words), _FORM.size)
        if self._ptrace(_SETREGS, tid, 0, ctypes.addressof(buffer)):
            raise TargetError(f"thread {tid}: its registers cannot be written: {os.strerror(ctypes.get_errno()).lower()}")

    def _ptrace(self, request: int, tid: int, address: int, data: int) -> bool:
        """Make a ptrace request; True if it failed."""
        return bool(self._libc.ptrace(request, tid, address, data) == -1)


def entry(regions: Sequence[Region], read: Callable[[int, int], bytes]) -> int:
    """The address of a `syscall` instruction in the process; TargetError if there is none."""
    code = [region for region in regions if region.executable and region.name != "[vsyscall]"]
    for region in sorted(code, key=lambda region: (region.name != "[vdso]", "libc" not in region.name)):
        for low in range(region.start, region.end, 1 << 20):
            at = read(low, min(1 << 20, region.end - low)).find(_SYSCALL)
            if at >= 0:
                return low + at
    raise TargetError("there is no syscall instruction in the process")


def checked(what: str, result: int) -> int:
    """The system call's result; TargetError if it failed."""
    if -4096 < result < 0:
        raise TargetError(f"memory cannot be had in the process: {what}: {errno.errorcode.get(-result, -result)}")
    return result
