"""The GDB part of `count --inject`: runs the process, and lets its threads map memory."""

from __future__ import annotations

import os
import signal
from typing import Any

import gdb
from findleaks.errors import TargetError
from findleaks.gdb.counting import GdbBreakpoints
from findleaks.gdb.target import switch
from findleaks.injection.remote_syscall import Remote
from findleaks.target.control import ThreadPosition

_ENDS = (signal.SIGTERM, signal.SIGHUP)  # Signals that end GDB.


class GdbInjection(GdbBreakpoints):
    """A process of this machine under GDB's control: a findleaks.target.control.InjectionHost."""

    late = 0.0  # Without breakpoints, the process has no other reason to stop.

    def __init__(self, pid: int, inferior: Any) -> None:
        super().__init__(pid, inferior)
        self._remote = Remote(pid)
        self._ending = 0
        self._noisy = False

    def begin(self) -> None:
        """Prepare to run. Signals that would end GDB are blocked until the stub is removed."""
        if gdb.parameter("non-stop"):
            raise TargetError("--inject needs all threads to stop together; run `set non-stop off` before attaching, or omit --inject")
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
        self.arm((), lambda address: True)
        # Exists since GDB 12. Users need not see findleaks' own stops.
        self._noisy = switch("suppress-cli-notifications", True)

    def hold(self) -> None:
        """Block Ctrl-C until the process runs again."""
        self._keys.deliver(False)

    def close(self) -> None:
        """Restore GDB's settings and signals, after everything is printed."""
        self.disarm()
        super().close()
        if self._noisy:
            switch("suppress-cli-notifications", False)
            self._noisy = False
        if self._ending:
            os.kill(os.getpid(), self._ending)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)

    def write(self, address: int, data: bytes) -> None:
        """Write memory through GDB, which may have breakpoints there."""
        try:
            self._inferior.write_memory(address, data)
        except gdb.error as error:
            raise TargetError(f"GDB cannot write at {address:#x}: {' '.join(str(error).split())}") from None

    def places(self) -> list[ThreadPosition]:
        return self._remote.places()

    def call(self, instruction: int, number: int, *arguments: int) -> int:
        """Let a thread of the process make a system call, and return its result."""
        return self._remote.call(instruction, number, *arguments)

    def stop(self) -> None:
        """Stop the process if it is running."""
        gdb.post_event(self._interrupt)

    def is_terminating(self) -> bool:
        """Whether a signal requested that GDB ends."""
        if not self._ending:
            waiting = signal.sigtimedwait(_ENDS, 0)
            self._ending = waiting.si_signo if waiting is not None else 0
        return bool(self._ending)
