"""GDB breakpoints that count calls: `continue` runs the process until a breakpoint requests a
stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any, Optional

import gdb
from findleaks.errors import TargetError, UsageError
from findleaks.gdb.keys import Keys
from findleaks.gdb.target import GdbProcess, switch
from findleaks.injection.stub.proc_memory import ProcMemory
from findleaks.target.base import Target
from findleaks.target.control import Outcome
from findleaks.target.ptrace import status, tasks

FATAL = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGSYS", "SIGTRAP", "SIGSTOP", "SIGTSTP", "SIGXCPU", "SIGXFSZ")
"""These signals end counting and leave the process stopped; others are delivered as GDB's `handle`
sets."""
_INTERRUPTS = ("SIGINT", "0", "SIG0")  # Signals with which GDB reports its own interrupts.
_MOST_SIGNALS = 8  # Most attempts to collect a pending signal.
_ARRIVAL_SECONDS = 0.5  # Seconds to wait until a signal stops the process, before another is sent.
_MASK = (1 << 64) - 1


class GdbBreakpoints:
    """A process of this machine under GDB's control: a findleaks.target.control.BreakpointHost."""

    # A process that reaches no breakpoint is interrupted this many seconds after its time.
    late = 0.2

    def __init__(self, pid: int, inferior: Any) -> None:
        self.pid = pid
        self._inferior = inferior
        self._breakpoints: list[Any] = []
        self._hit: Callable[[int], bool] = lambda address: True
        self._asked = self._interrupting = self._expired = self._pressed = self._runs = False
        self._keys = Keys(self._press)
        self._posted = False  # An event was posted to GDB and has not run yet.
        self._noted = 0  # Number of Ctrl-C presses so far.
        self._last: Optional[Any] = None
        self._memory = ProcMemory(pid)
        self._paged = False

    def arm(self, addresses: Sequence[int], hit: Callable[[int], bool]) -> None:
        """Set breakpoints. From now on, a Ctrl-C that arrives while the process runs ends
        counting."""
        self._keys.take()
        self._hit = hit
        self._memory.open()
        # Print tables without a pager, as the user may not be present to press a key.
        self._paged = switch("pagination", False)
        gdb.events.stop.connect(self._handle_stop)
        gdb.events.exited.connect(self._handle_stop)
        for address in addresses:
            try:
                self._breakpoints.append(Breakpoint(self, address))
            except (gdb.error, RuntimeError) as error:
                raise TargetError(f"GDB cannot set a breakpoint at {address:#x}: {' '.join(str(error).split())}") from None

    def disarm(self) -> None:
        """Delete the breakpoints. GDB removed them from the code when the process stopped."""
        while self._breakpoints:
            made = self._breakpoints.pop()
            if made.is_valid():
                made.delete()
        if self._memory.close():
            gdb.events.stop.disconnect(self._handle_stop)
            gdb.events.exited.disconnect(self._handle_stop)

    def close(self) -> None:
        """Restore the user's pager and GDB's handling of Ctrl-C, after everything is printed."""
        if self._paged:
            switch("pagination", True)
            self._paged = False
        self._keys.restore()

    def run(self, seconds: Optional[float]) -> Outcome:
        """Let the process run for `seconds` at most (None: no limit)."""
        self._asked = self._expired = self._interrupting = False
        self._keys.deliver(True)
        if self._pressed:  # The key was pressed while the process was stopped.
            self._keys.deliver(False)
            return Outcome("interrupt")
        timers = []
        if seconds is not None:
            timers = [_timer(seconds, self._expire), _timer(seconds + self.late, gdb.post_event, self._interrupt)]
        self._runs = True
        try:
            while True:
                outcome = self._continue()
                if outcome is not None:
                    return self._collect(outcome)
        finally:
            for timer in timers:
                timer.cancel()
            self._runs = False  # An event that is already posted does nothing then.
            self._expired = True
            # Ctrl-C would interrupt the printing of the next table. It is delivered when the
            # process runs again.
            self._keys.deliver(False)

    def open_target(self) -> Target:
        return GdbProcess(self.pid, self._inferior)

    def thread(self) -> int:
        ptid = gdb.selected_thread().ptid
        return int(ptid[1] or ptid[2] or ptid[0])

    def register(self, name: str) -> int:
        return int(gdb.parse_and_eval(f"${name}")) & _MASK

    def read(self, address: int, size: int) -> bytes:
        return self._memory.read(address, size)

    def holds(self, expression: str) -> bool:
        try:
            return bool(gdb.parse_and_eval(expression))
        except gdb.error as error:
            raise UsageError(f"--when {expression!r} cannot be evaluated: {' '.join(str(error).split())}") from None

    def handle_breakpoint(self, address: int) -> bool:
        """Handle a breakpoint that was hit; returns whether to stop there."""
        # The counter has already requested a stop, but a signal is still pending.
        if self._asked:
            return False
        self._asked = self._hit(address)
        # An interrupt's signal must arrive before `continue` returns.
        return (self._asked or self._expired or self._pressed) and not self._interrupting

    def _continue(self) -> Optional[Outcome]:
        """Run `continue`. Return why the process stopped, or None if it should continue."""
        self._last = None
        try:
            gdb.execute("continue", to_string=True)
        except gdb.error as error:
            if self._inferior.is_valid() and self._inferior.pid == self.pid:
                return Outcome("stop", " ".join(str(error).split()))
        except KeyboardInterrupt:
            return Outcome("interrupt")
        last = self._last
        if not self._inferior.is_valid() or self._inferior.pid != self.pid or isinstance(last, gdb.ExitedEvent):
            code = getattr(last, "exit_code", None)
            return Outcome("ended", f"exit code {code}" if code is not None else "")
        if self._pressed:
            return Outcome("interrupt")
        if isinstance(last, gdb.BreakpointEvent):
            if any(one not in self._breakpoints for one in last.breakpoints):
                return Outcome("stop", "one of your breakpoints was reached")
            return Outcome("asked" if self._asked else "time")
        if isinstance(last, gdb.SignalEvent):
            return self._handle_signal(last.stop_signal)
        return Outcome("stop", "GDB stopped it")

    def _collect(self, outcome: Outcome) -> Outcome:
        """The outcome, after any pending interrupt signal has stopped the process. A signal left
        pending would be reported by GDB later, or end the process."""
        self._noted += self._keys.count_new()
        self._pressed |= bool(self._noted)
        # GDB received the key, and sent a signal to the process.
        missing = self._noted > self._keys.python_count and not _is_interrupted(self._last)
        for _ in range(_MOST_SIGNALS):
            if outcome.why not in ("asked", "time", "interrupt") or not (missing or self._posted or waiting(self.pid, signal.SIGINT)):
                break
            # A posted event must run as well: GDB crashes at its end if one is left.
            missing, self._asked, self._interrupting = False, True, not self._posted
            timer = _timer(_ARRIVAL_SECONDS, gdb.post_event, self._send_again)
            again = self._continue()
            timer.cancel()
            if again is not None and again.why in ("ended", "stop"):
                return again
        return Outcome("interrupt") if self._pressed and outcome.why in ("asked", "time") else outcome

    def _send_again(self) -> None:
        """Interrupt again: the expected signal did not arrive."""
        self._interrupting = False
        self._interrupt()

    def _press(self) -> None:
        """Record a Ctrl-C, or a SIGINT to GDB. Called between two instructions of the main
        thread."""
        self._pressed = True
        if not self._posted:
            self._posted = True
            gdb.post_event(self._on_press)

    def _on_press(self) -> None:
        self._posted = False
        self._interrupt()

    def _handle_signal(self, name: str) -> Optional[Outcome]:
        if name in _INTERRUPTS:
            return Outcome("interrupt" if not self._interrupting else "asked" if self._asked else "time")
        return Outcome("stop", f"it received {name}") if name in FATAL else None

    def _expire(self) -> None:
        self._expired = True

    def _interrupt(self) -> None:
        """Interrupt the process. Runs in GDB's event loop, between two stops."""
        if self._runs and self._last is None and not self._interrupting and self._inferior.is_valid():
            self._interrupting = True
            gdb.execute("interrupt", to_string=True)

    def _handle_stop(self, event: Any) -> None:
        self._last = event


def _timer(seconds: float, function: Callable[..., object], *arguments: object) -> threading.Timer:
    """Start a timer that does not keep GDB from ending."""
    made = threading.Timer(seconds, function, arguments)
    made.daemon = True
    made.start()
    return made


def _is_interrupted(event: Any) -> bool:
    """Whether an interrupt's signal stopped the process."""
    return isinstance(event, gdb.SignalEvent) and event.stop_signal in _INTERRUPTS


def waiting(pid: int, number: int) -> bool:
    """Whether a signal is pending for a process: sent and not blocked, but not yet received."""
    bit = 1 << (number - 1)
    for task in tasks(pid):
        lines = status(task)
        pending, shared, blocked = (int(lines.get(name, "0"), 16) for name in ("SigPnd", "ShdPnd", "SigBlk"))
        if (pending | shared) & ~blocked & bit:
            return True
    return False


class Breakpoint(gdb.Breakpoint):
    """A breakpoint; GDB calls `stop` when a thread reaches it."""

    def __init__(self, owner: GdbBreakpoints, address: int) -> None:
        super().__init__(f"*{address:#x}", internal=True)
        self.silent = True
        self._owner, self._address = owner, address

    def stop(self) -> bool:
        return self._owner.handle_breakpoint(self._address)
