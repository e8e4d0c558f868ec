"""GDB's part in `count --inject`: lets the process run, and makes its threads map memory."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any, Optional

import gdb
from findleaks.counting.remote_syscall import Remote
from findleaks.errors import TargetError
from findleaks.gdb.counting import GdbBreakpoints
from findleaks.target.control import Outcome, ThreadPosition

_ENDS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end GDB."""


class GdbInjection(GdbBreakpoints):
    """Process of this machine that is controlled by GDB: a
    findleaks.target.control.InjectionHost."""

    def __init__(self, pid: int, inferior: Any) -> None:
        super().__init__(pid, inferior)
        self._remote = Remote(pid)
        self._ending = 0
        self._runs = self._noisy = False

    def begin(self) -> None:
        """Prepare to run the process. Signals that would end GDB are blocked until the stub is
        removed."""
        if gdb.parameter("non-stop"):
            raise TargetError("--inject needs all threads to stop together: `set non-stop off` before attaching, or leave it out")
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
        self.arm((), lambda address: True)
        # Since GDB 12; the user need not see findleaks' own stops.
        try:
            self._noisy = not gdb.parameter("suppress-cli-notifications")
        except RuntimeError:
            self._noisy = False
        if self._noisy:
            gdb.execute("set suppress-cli-notifications on", to_string=True)

    def hold(self) -> None:
        """Block Ctrl-C until the process runs again."""
        self._keys.deliver(False)

    def close(self) -> None:
        """Restore GDB's settings and signals, after everything is printed."""
        self.disarm()
        super().close()
        if self._noisy:
            gdb.execute("set suppress-cli-notifications off", to_string=True)
            self._noisy = False
        if self._ending:
            os.kill(os.getpid(), self._ending)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)

    def write(self, address: int, data: bytes) -> None:
        """Write through GDB, which may have breakpoints there."""
        try:
            self._inferior.write_memory(address, data)
        except gdb.error as error:
            raise TargetError(f"GDB cannot write at {address:#x}: {' '.join(str(error).split())}") from None

    def places(self) -> list[ThreadPosition]:
        """Where each thread is stopped."""
        return self._remote.places()

    def call(self, instruction: int, number: int, *arguments: int) -> int:
        """Result of a system call that a thread of the process makes."""
        return self._remote.call(instruction, number, *arguments)

    def stop(self) -> None:
        """Stop the process, if it runs."""
        gdb.post_event(self._interrupt)

    def terminated(self) -> bool:
        """Whether a signal asked GDB to end."""
        if not self._ending:
            waiting = signal.sigtimedwait(_ENDS, 0)
            self._ending = waiting.si_signo if waiting is not None else 0
        return bool(self._ending)

    def run(self, seconds: Optional[float]) -> Outcome:
        """Let the process run for `seconds` at most (None: no limit)."""
        self._expired = self._interrupting = False
        self._keys.deliver(True)
        if self._pressed:  # pressed while it was stopped
            self._keys.deliver(False)
            return Outcome("interrupt")
        timer = threading.Timer(seconds, gdb.post_event, [self._interrupt]) if seconds is not None else None
        self._runs = True
        try:
            if timer is not None:
                timer.daemon = True
                timer.start()
            while True:
                outcome = self._continue()
                if outcome is not None:
                    return self._collected(outcome)
        finally:
            self._runs = False
            if timer is not None:
                timer.cancel()
            self._keys.deliver(False)

    def _interrupt(self) -> None:
        """Interrupt the process. Runs in GDB's event loop."""
        if self._runs and self._last is None and not self._interrupting and self._inferior.is_valid():
            self._interrupting = True
            gdb.execute("interrupt", to_string=True)
