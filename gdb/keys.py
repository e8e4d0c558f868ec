"""Ctrl-C while the process that GDB holds runs and stops by the thousand: noted, whatever the main thread does at that moment.

GDB's own handler of SIGINT sets a flag of Python's as well (PyErr_SetInterrupt). Who looks at it first takes it: GDB, which then interrupts
the process, or Python, which raises KeyboardInterrupt in whatever code runs: a breakpoint's `stop`, or somebody's handler of an event,
where GDB prints it and goes on. So Python is given a handler here that only takes note; that of GDB stays the signal's. And since GDB's
interrupt may arrive as one with another that was sent because time is up, what Python writes to its wakeup descriptor is read, too, which
it does whoever takes the flag.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Optional

_ROOM = 256
"""Bytes of a struct sigaction, and more: 152 in glibc on 64-bit machines."""


class Keys:
    """SIGINT, from `take` to `give_back`. `pressed` is called by the main thread, between two instructions of Python, once or more often,
    where it is Python that takes it."""

    def __init__(self, pressed: Callable[[], None]) -> None:
        self._pressed = pressed
        self._taken = False
        self.heard = 0  # how often Python took it
        self._before: Any = None
        self._reading = self._writing = self._woken = -1

    def take(self) -> None:
        """From now on it is ours, and waits."""
        if not self._taken:
            self.hear(False)
            self._reading, self._writing = os.pipe()
            for end in (self._reading, self._writing):
                os.set_blocking(end, False)
            self._woken = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
            self._before, self._taken = self._install(self._on_signal), True

    def noted(self) -> int:
        """How often it came since the last time this was asked, whoever took it."""
        try:
            return os.read(self._reading, 1 << 16).count(signal.SIGINT)
        except OSError:  # nothing
            return 0

    def give_back(self) -> None:
        """As it was before. What came since the process was stopped for good is dropped."""
        if self._taken:
            while signal.sigtimedwait([signal.SIGINT], 0) is not None:
                pass
            self._install(self._before)
            signal.set_wakeup_fd(self._woken)
            os.close(self._reading)
            os.close(self._writing)
            self._reading = self._writing = -1
            self._taken = False
        self.hear(True)

    @staticmethod
    def hear(heard: bool) -> None:
        """Let the signal through, or keep it waiting. GDB's other threads never take it."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK if heard else signal.SIG_BLOCK, {signal.SIGINT})

    def _on_signal(self, _: int, frame: Optional[FrameType]) -> None:
        self.heard += 1
        self._pressed()

    @staticmethod
    def _install(handler: Any) -> Any:
        """Python's handler, without the system's, which is GDB's."""
        libc = ctypes.CDLL(None)
        action = ctypes.create_string_buffer(_ROOM)
        libc.sigaction(int(signal.SIGINT), None, action)
        try:
            return signal.signal(signal.SIGINT, handler if handler is not None else signal.default_int_handler)
        finally:
            libc.sigaction(int(signal.SIGINT), action, None)
