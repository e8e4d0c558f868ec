"""System calls that a stopped thread of another process makes, on x86-64 Linux.

The thread is single-stepped at a `syscall` instruction of the process. Then its registers are
restored, so that the registers that GDB has cached are still correct. Only the thread that traces
the process may use ptrace. In GDB, this is the thread that runs Python's commands. (Linux
arch/x86/entry/common.c, arch/x86/include/asm/user_64.h; ptrace(2).)"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Sequence

from findleaks.errors import TargetError
from findleaks.injection.requests import ALL_BUT_TRAP, ARGUMENTS, FS_BASE, M64, ORIG_RAX, RAX, RIP, RSP, WALL, Requests
from findleaks.target.base import Region
from findleaks.target.control import ThreadPosition
from findleaks.target.encoded_numbers import decode_signed
from findleaks.target.maps import regions_of
from findleaks.target.ptrace import state, tasks

# Numbers of system calls (Linux arch/x86/entry/syscalls/syscall_64.tbl).
MMAP, MUNMAP, MADVISE, CLOSE, FTRUNCATE, MEMFD_CREATE = 9, 11, 28, 3, 77, 319

_SINGLESTEP = 9
_SYSCALL = b"\x0f\x05"
_STEP_SECONDS = 5.0


def read_mappings(pid: int) -> list[Region]:
    """Return the current mappings of the process; [] if it has ended."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            return regions_of(file.read())
    except OSError:
        return []


class Remote(Requests):
    """A process that the calling thread traces, with all threads stopped."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self.pid = pid

    def places(self) -> list[ThreadPosition]:
        """Return the position of each thread. Raises TargetError if a thread is running."""
        found = []
        for tid in tasks(self.pid):
            words = self.registers(tid)
            if words is not None:
                found.append(ThreadPosition(tid, words[RIP], words[RSP], words[FS_BASE]))
            elif state(self.pid, tid) not in "ZX":
                raise TargetError(f"thread {tid} is not stopped")
        return found

    def call(self, instruction: int, number: int, *arguments: int) -> int:
        """Make a system call. Returns its result, or a negative errno. Raises TargetError if the
        call could not be made."""
        for tid in tasks(self.pid):
            words = self.registers(tid)
            if words is None:
                continue
            self.check_seccomp(tid, instruction, number, arguments)
            return self._call(tid, words, instruction, number, arguments)
        raise TargetError(f"pid {self.pid}: none of its threads is stopped")

    def _call(self, tid: int, words: Sequence[int], instruction: int, number: int, arguments: Sequence[int]) -> int:
        mask = self.signal_mask(tid)
        ours = list(words)
        ours[RAX], ours[RIP] = number, instruction
        ours[ORIG_RAX] = M64  # prevents the restart of an interrupted system call
        for register, value in zip(ARGUMENTS, arguments):
            ours[register] = value & M64
        stopped = False
        self.set_signal_mask(tid, ALL_BUT_TRAP)
        try:
            self.set_registers(tid, ours)
            for _ in range(4):
                stopped |= self._step(tid) == signal.SIGSTOP
                after = self.registers(tid)
                if after is None:
                    raise TargetError(f"thread {tid} has ended")
                if after[RIP] != instruction:
                    break
            else:
                raise TargetError(f"thread {tid} makes no system call")
        finally:
            self.set_registers(tid, words)
            self.set_signal_mask(tid, mask)
            if stopped:  # the debugger sent this SIGSTOP, and waits for it
                self.libc.tgkill(self.pid, tid, signal.SIGSTOP)
        return decode_signed(after[RAX], 64)

    def _step(self, tid: int) -> int:
        """Execute one instruction. Returns the signal that stopped the thread."""
        self.require(" cannot be stepped", _SINGLESTEP, tid)
        limit = time.monotonic() + _STEP_SECONDS
        while time.monotonic() < limit:
            try:
                got, how = os.waitpid(tid, WALL | os.WNOHANG)
            except InterruptedError:
                continue
            except ChildProcessError:
                break
            if got and os.WIFSTOPPED(how):
                return os.WSTOPSIG(how)
            if got:
                break
            time.sleep(0.0001)
        raise TargetError(f"thread {tid} did not return from a system call")


def entry(regions: Sequence[Region], read: Callable[[int, int], bytes]) -> int:
    """Return the address of a `syscall` instruction in the process. Raises TargetError if there is
    none."""
    code = [region for region in regions if region.executable and region.name != "[vsyscall]"]
    for region in sorted(code, key=lambda region: (region.name != "[vdso]", "libc" not in region.name)):
        for low in range(region.start, region.end, 1 << 20):
            at = read(low, min(1 << 20, region.end - low)).find(_SYSCALL)
            if at >= 0:
                return low + at
    raise TargetError("no syscall instruction found in the process")


def check_result(what: str, result: int) -> int:
    """Return the result of a system call. Raises TargetError if it failed."""
    if -4096 < result < 0:
        raise TargetError(f"cannot allocate memory in the process: {what}: {errno.errorcode.get(-result, -result)}")
    return result
