"""ptrace requests on a stopped x86-64 thread: registers, signal mask, seccomp filters.

Only the thread that traces the process may make them. Layouts: Linux arch/x86/include/asm/user_64.h
(struct user_regs_struct), include/uapi/linux/ptrace.h; ptrace(2)."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
from collections.abc import Sequence
from typing import Optional

from findleaks.errors import TargetError
from findleaks.injection.seccomp import Step, is_allowed, program
from findleaks.target.ptrace import ptrace_library, status

R10, R9, R8, RAX, RDX, RSI, RDI, ORIG_RAX, RIP, CS, RSP, FS_BASE = 7, 8, 9, 10, 12, 13, 14, 15, 16, 17, 19, 21
"""Indices in struct user_regs_struct."""
ARGUMENTS = (RDI, RSI, RDX, R10, R8, R9)  # registers of system call arguments, in order
M64 = (1 << 64) - 1
ALL_BUT_TRAP = M64 ^ 1 << signal.SIGTRAP - 1  # signal mask
WALL = 0x40000000  # __WALL of waitpid(2)

_GETREGS, _SETREGS, _GETSIGMASK, _SETSIGMASK = 12, 13, 0x420A, 0x420B
_GET_FILTER, _MAX_FILTERS = 0x420C, 64
_FORM = struct.Struct("<27Q")  # struct user_regs_struct


class Requests:
    """ptrace requests that the calling thread makes."""

    def __init__(self) -> None:
        self.libc = ptrace_library()

    def attempt(self, request: int, tid: int, address: int = 0, data: int = 0) -> bool:
        """Make a ptrace request. Returns False if it failed; ctypes' errno then has the reason."""
        return bool(self.libc.ptrace(request, tid, address, data) != -1)

    def require(self, what: str, request: int, tid: int, address: int = 0, data: int = 0) -> None:
        """Make a ptrace request. Raises TargetError if it failed."""
        if not self.attempt(request, tid, address, data):
            raise TargetError(f"thread {tid}{what}: {os.strerror(ctypes.get_errno()).lower()}")

    def registers(self, tid: int) -> Optional[tuple[int, ...]]:
        """Return the 27 words of struct user_regs_struct; None unless the thread is stopped and
        traced."""
        buffer = ctypes.create_string_buffer(_FORM.size)
        return _FORM.unpack(buffer.raw) if self.attempt(_GETREGS, tid, 0, ctypes.addressof(buffer)) else None

    def set_registers(self, tid: int, words: Sequence[int]) -> None:
        buffer = ctypes.create_string_buffer(_FORM.pack(*words), _FORM.size)
        self.require(": its registers cannot be written", _SETREGS, tid, 0, ctypes.addressof(buffer))

    def signal_mask(self, tid: int) -> int:
        """Return the signals that the thread blocks; bit 0 is signal 1."""
        mask = ctypes.c_uint64()
        self.require("", _GETSIGMASK, tid, 8, ctypes.addressof(mask))
        return mask.value

    def set_signal_mask(self, tid: int, mask: int) -> None:
        """Block these signals. Failure is ignored, because the thread may have ended."""
        word = ctypes.c_uint64(mask)
        self.attempt(_SETSIGMASK, tid, 8, ctypes.addressof(word))

    def check_seccomp(self, tid: int, instruction: int, number: int, arguments: Sequence[int]) -> None:
        """Check that seccomp permits the call, so that it neither fails nor ends the process.
        Raises TargetError if seccomp does not permit it."""
        if status(tid).get("Seccomp", "0") == "0":
            return
        filters = self._filters(tid)
        if filters is None:
            raise TargetError("the process is under seccomp, which may end it for a system call, and findleaks cannot read its filter")
        if not is_allowed(filters, number, instruction, arguments):
            raise TargetError(f"the process is under seccomp, which does not permit system call {number}")

    def _filters(self, tid: int) -> Optional[list[list[Step]]]:
        """Return a thread's seccomp filters; None if they cannot be read."""
        found: list[list[Step]] = []
        while len(found) < _MAX_FILTERS:
            count = self.libc.ptrace(_GET_FILTER, tid, len(found), None)
            if count < 0:
                return found if found and ctypes.get_errno() == errno.ENOENT else None
            buffer = ctypes.create_string_buffer(8 * count)
            if self.libc.ptrace(_GET_FILTER, tid, len(found), ctypes.addressof(buffer)) != count:
                return None
            found.append(program(buffer.raw))
        return None
