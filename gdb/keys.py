"""Records each Ctrl-C while GDB runs and stops the process thousands of times.

GDB's own handler of SIGINT also sets a flag in Python (PyErr_SetInterrupt). Whoever checks the flag
first clears it: GDB, which then interrupts the process, or Python, which raises KeyboardInterrupt
in any running code. In a breakpoint's `stop` or an event handler of the user, GDB prints this
exception and continues. So the Python handler in this file only records the key, and GDB keeps its
handler in the system. GDB's interrupt may merge with one that was sent because the time is up. So
Python's wakeup descriptor is read, too: Python writes to it no matter who clears the flag."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Optional

# Size for a struct sigaction: more than the 152 bytes of glibc on 64-bit machines.
_SIGACTION_BYTES = 256


class Keys:
    """SIGINT from `take` to `restore`. If Python receives the key, the main thread calls `pressed`
    between two Python instructions, once or more often."""

    def __init__(self, pressed: Callable[[], None]) -> None:
        self._pressed = pressed
        self._taken = False
        self.python_count = 0  # How often Python received it.
        self._before: Any = None
        self._reading = self._writing = self._woken = -1

    def take(self) -> None:
        """Take over SIGINT, and block it until `deliver(True)`."""
        if not self._taken:
            self.deliver(False)
            self._reading, self._writing = os.pipe()
            for end in (self._reading, self._writing):
                os.set_blocking(end, False)
            self._woken = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
            self._before, self._taken = self._install(self._on_signal), True

    def count_new(self) -> int:
        """How often the signal arrived since the last call, whoever received it."""
        try:
            return os.read(self._reading, 1 << 16).count(signal.SIGINT)
        except OSError:  # There is nothing to read.
            return 0

    def restore(self) -> None:
        """Restore what `take` changed. Drops a signal that arrived after the last stop."""
        if self._taken:
            while signal.sigtimedwait([signal.SIGINT], 0) is not None:
                pass
            self._install(self._before)
            signal.set_wakeup_fd(self._woken)
            os.close(self._reading)
            os.close(self._writing)
            self._reading = self._writing = -1
            self._taken = False
        self.deliver(True)

    @staticmethod
    def deliver(on: bool) -> None:
        """Unblock the signal, or block it. GDB's other threads never receive it."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK if on else signal.SIG_BLOCK, {signal.SIGINT})

    def _on_signal(self, _: int, frame: Optional[FrameType]) -> None:
        self.python_count += 1
        self._pressed()

    @staticmethod
    def _install(handler: Any) -> Any:
        """Set Python's handler, and return the previous one. The system's handler, which is GDB's,
        stays."""
        libc = ctypes.CDLL(None)
        action = ctypes.create_string_buffer(_SIGACTION_BYTES)
        libc.sigaction(int(signal.SIGINT), None, action)
        try:
            return signal.signal(signal.SIGINT, handler if handler is not None else signal.default_int_handler)
        finally:
            libc.sigaction(int(signal.SIGINT), action, None)
