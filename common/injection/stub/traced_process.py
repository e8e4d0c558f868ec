"""A process that findleaks stops, changes and resumes with ptrace, without a debugger.

The process is traced only while it is stopped. The calling thread makes all ptrace requests.
Ctrl-C, and signals that end findleaks, are deferred while the process is stopped."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import Any, Optional

from findleaks.errors import TargetError
from findleaks.injection.remote_syscall import Remote
from findleaks.injection.stub.proc_memory import ProcMemory, writable_memory
from findleaks.target.arch import X86_64
from findleaks.target.base import Target
from findleaks.target.control import Outcome, ThreadPosition
from findleaks.target.live import LiveTarget
from findleaks.target.ptrace import Tracer, has_ended, state

_POLL_SECONDS = 0.02  # seconds between polls of the conditions that end a wait
_ENDS = (signal.SIGTERM, signal.SIGHUP)


class TracedProcess:
    """A process of this machine that nothing traces. Implements target.control.InjectionHost."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._remote = Remote(pid)
        self._tracer: Optional[Tracer] = None
        self._memory: Optional[ProcMemory] = None
        self._handlers: dict[int, Any] = {}
        self._pressed = False
        self._ending = self._reported = 0
        self._asked = threading.Event()

    def open_target(self) -> Target:
        return LiveTarget(self.pid)

    def begin(self) -> None:
        """Handle the signals that would end findleaks, except those that are ignored."""
        self._pressed = False
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, *_ENDS):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._handlers[number] = signal.signal(number, self._handle_signal)

    def hold(self) -> None:
        """Stop the process."""
        if self._tracer is not None:
            return
        self._tracer = tracer = Tracer(self.pid, X86_64)
        try:
            tracer.stop_all()
        except BaseException:
            self.release()
            raise

    def run(self, seconds: Optional[float]) -> Outcome:
        """Let the process run for at most `seconds` (None: no limit), and stop it.
        Only the first signal ends this early. Later calls still give threads time to leave the
        stub."""
        limit = time.monotonic() + seconds if seconds is not None else None
        self._asked.clear()
        self.release()
        outcome = self._wait(limit)
        try:
            self.hold()
        except TargetError:
            if not has_ended(self.pid):
                raise
            return Outcome("ended")
        return outcome

    def _wait(self, limit: Optional[float]) -> Outcome:
        while True:
            if self._pressed:
                self._pressed = False
                return Outcome("interrupt")
            if self._ending != self._reported:
                self._reported = self._ending
                return Outcome("stop", "findleaks is ending")
            if self._asked.is_set():
                return Outcome("time")
            if state(self.pid, self.pid) in "ZX" and has_ended(self.pid):
                return Outcome("ended")
            left = limit - time.monotonic() if limit is not None else _POLL_SECONDS
            if left <= 0:
                return Outcome("time")
            time.sleep(min(left, _POLL_SECONDS))

    def write(self, address: int, data: bytes) -> None:
        if self._memory is None:
            self._memory = writable_memory(self.pid)
        self._memory.write(address, data)

    def places(self) -> list[ThreadPosition]:
        return self._remote.places()

    def call(self, instruction: int, number: int, *arguments: int) -> int:
        """Return the result of a system call that a thread of the process makes."""
        return self._remote.call(instruction, number, *arguments)

    def stop(self) -> None:
        """Stop the process soon if it is running."""
        self._asked.set()

    def is_terminating(self) -> bool:
        """Whether a signal asked findleaks to end."""
        return bool(self._ending)

    def close(self) -> None:
        """Resume the process, and restore the signal handlers. A deferred signal takes effect
        now."""
        self.release()
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}
        if self._ending:
            os.kill(os.getpid(), self._ending)

    def release(self) -> None:
        """Resume the process, if this class stopped it."""
        tracer, self._tracer = self._tracer, None
        while tracer is not None and not tracer.detach_all():
            time.sleep(0.001)  # a thread that did not stop in time stops when it wakes up

    def _handle_signal(self, number: int, frame: Optional[FrameType]) -> None:
        if number == signal.SIGINT:
            self._pressed = True
        else:
            self._ending = number
