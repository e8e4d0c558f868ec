"""LLDB breakpoints that count calls. The process is continued here after each stop: this is as fast
as LLDB's callbacks, and everything runs in the thread of the command."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Optional

import lldb
from findleaks.errors import TargetError, UsageError
from findleaks.injection.stub.proc_memory import ProcMemory
from findleaks.lldb.calls import Calls, Place
from findleaks.lldb.target import LldbProcess
from findleaks.target.base import Target
from findleaks.target.control import Outcome

if TYPE_CHECKING:
    from findleaks.lldb.interrupt import Interrupts

FATAL = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGSYS", "SIGTRAP", "SIGTSTP", "SIGXCPU", "SIGXFSZ")
"""These signals end counting and leave the process stopped; others are delivered as LLDB's `process
handle` sets."""
# A process that reaches no breakpoint is interrupted at this interval in seconds, as Ctrl-C is
# noticed only then.
IDLE = 1.0
_LATE = 0.2  # A process that reaches no breakpoint is interrupted this many seconds after its time.
_RUNNING = (lldb.eStateRunning, lldb.eStateStepping)
_GONE = (lldb.eStateExited, lldb.eStateDetached, lldb.eStateInvalid, lldb.eStateUnloaded)


class LldbBreakpoints:
    """A process of this machine under LLDB's control: a findleaks.target.control.BreakpointHost."""

    def __init__(self, pid: int, process: Any, interrupts: Optional[Interrupts] = None) -> None:
        self.pid = pid
        self._interrupts = interrupts
        self._process = process
        self._target = process.GetTarget()
        self._debugger = self._target.GetDebugger()
        self._breakpoints: dict[int, Any] = {}  # By address.
        self._hit: Callable[[int], bool] = lambda address: True
        self._frame: Any = None
        self._thread = 0
        self._memory = ProcMemory(pid)
        self._calls = Calls(pid)
        self._quiet: list[int] = []  # Signals for which LLDB does not stop, by its settings.

    def arm(self, addresses: Sequence[int], hit: Callable[[int], bool]) -> None:
        self._hit = hit
        self._memory.open()
        self._stop_for_all_signals()
        for address in addresses:
            made = self._target.BreakpointCreateByAddress(address)
            self._breakpoints[address] = made
            if not made.IsValid() or not made.GetNumResolvedLocations():
                raise TargetError(f"LLDB cannot set a breakpoint at {address:#x}")

    def disarm(self) -> None:
        """Delete the breakpoints, which restores the code."""
        while self._breakpoints:
            _, made = self._breakpoints.popitem()
            self._target.BreakpointDelete(made.GetID())
        signals = self._process.GetUnixSignals()
        while self._quiet:
            signals.SetShouldStop(self._quiet.pop(), False)
        self._memory.close()

    def close(self) -> None:
        """Raise KeyboardInterrupt again, after everything is printed."""
        if self._interrupts is not None:
            self._interrupts.heed()

    def run(self, seconds: Optional[float]) -> Outcome:
        """Let the process run for at most `seconds` (None: no limit). Ctrl-C is accepted until the
        process is stopped; later it would interrupt the printing of the table."""
        try:
            if self._interrupts is not None and self._interrupts.heed():
                self._interrupts.hold()
                return Outcome("interrupt")
            return self._run(seconds)
        except KeyboardInterrupt:
            return Outcome("interrupt")

    def _run(self, seconds: Optional[float]) -> Outcome:
        limit = time.monotonic() + seconds if seconds is not None else None
        timer = _InterruptTimer(self._process)
        before = self._debugger.GetAsync()
        self._debugger.SetAsync(False)
        timer.start()
        try:
            while True:
                due = min(IDLE, limit - time.monotonic() + _LATE) if limit is not None else IDLE
                timer.set_timer(max(due, _LATE))
                error = self._process.Continue()
                interrupted = timer.stop_timer()
                if error.Fail():
                    return self._find_end() or Outcome("stop", f"LLDB: {error.GetCString()}")
                outcome = self._handle_stop(interrupted)
                if outcome is None and limit is not None and time.monotonic() >= limit:
                    outcome = Outcome("time")
                if outcome is not None:
                    return outcome
        finally:
            try:
                if self._interrupts is not None:
                    # A pending KeyboardInterrupt is raised here.
                    self._interrupts.hold()
            finally:
                timer.end()
                if self._process.GetState() in _RUNNING:
                    self._process.Stop()
                self._debugger.SetAsync(before)
                self._frame = None

    def open_target(self) -> Target:
        return LldbProcess(self.pid, self._process)

    def thread(self) -> int:
        return self._thread

    def register(self, name: str) -> int:
        if name in ("rsp", "rbp"):  # faster
            return int(self._frame.GetSP() if name == "rsp" else self._frame.GetFP())
        found = self._frame.FindRegister(name)
        if not found.IsValid():
            raise TargetError(f"this LLDB does not report the register {name}; use findleaks count --pid {self.pid}, or GDB")
        return int(found.GetValueAsUnsigned())

    def read(self, address: int, size: int) -> bytes:
        return self._memory.read(address, size)

    def holds(self, expression: str) -> bool:
        options = lldb.SBExpressionOptions()
        options.SetSuppressPersistentResult(True)
        value = self._frame.EvaluateExpression(expression, options)
        error = lldb.SBError()
        number = value.GetValueAsUnsigned(error, 0)
        if value.GetError().Fail() or error.Fail():
            text = value.GetError().GetCString() or error.GetCString() or "it has no value"
            raise UsageError(f"--when {expression!r} cannot be evaluated: {' '.join(text.split())}")
        return bool(number)

    def _find_end(self) -> Optional[Outcome]:
        if self._process.GetState() not in _GONE:
            return None
        exited = self._process.GetState() == lldb.eStateExited
        return Outcome("ended", f"exit code {self._process.GetExitStatus()}" if exited else "")

    def _handle_stop(self, interrupted: bool) -> Optional[Outcome]:
        """Count each thread that reached a breakpoint. Return why the run ends, or None."""
        gone = self._find_end()
        if gone is not None:
            return gone
        outcome = None
        for index in range(self._process.GetNumThreads()):
            thread = self._process.GetThreadAtIndex(index)
            reason = thread.GetStopReason()
            if reason == lldb.eStopReasonException:
                outcome = Outcome("stop", "it received an exception")
            if reason not in (lldb.eStopReasonBreakpoint, lldb.eStopReasonSignal):
                continue
            self._frame, self._thread = thread.GetFrameAtIndex(0), thread.GetThreadID()
            address = self._frame.GetPC()
            signal = int(thread.GetStopReasonDataAtIndex(0)) if reason == lldb.eStopReasonSignal else 0
            if address in self._breakpoints:
                if self._calls.is_new(Place(self._thread, address, self._frame.GetSP()), signal) and self._hit(address):
                    return Outcome("asked")
            elif not signal and not _internal(thread):
                outcome = Outcome("stop", "one of your breakpoints was reached")
            outcome = (self._handle_signal(signal, interrupted) if signal else None) or outcome
        return outcome

    def _handle_signal(self, number: int, interrupted: bool) -> Optional[Outcome]:
        """Why a thread's signal ends the run, or None."""
        name = self._process.GetUnixSignals().GetSignalAsCString(number) or ""
        if name in ("SIGINT", "SIGSTOP"):
            return None if interrupted or number in self._quiet else Outcome("interrupt")
        return Outcome("stop", f"it received {name}") if name in FATAL and number not in self._quiet else None

    def _stop_for_all_signals(self) -> None:
        """Let LLDB stop for each signal: a handler may run between a call and its first
        instruction."""
        signals = self._process.GetUnixSignals()
        for place in range(signals.GetNumSignals()):
            number = signals.GetSignalAtIndex(place)
            if not signals.GetShouldStop(number):
                signals.SetShouldStop(number, True)
                self._quiet.append(number)


def _internal(thread: Any) -> bool:
    """Whether only LLDB's own breakpoints (numbers below 0) stopped the thread: those of its loader
    support, when a library is loaded. LLDB reports them only if another thread stopped at a
    breakpoint of findleaks."""
    # Each breakpoint's number is followed by that of a location.
    numbers = [thread.GetStopReasonDataAtIndex(place) for place in range(0, thread.GetStopReasonDataCount(), 2)]
    return all(number & 0x80000000 for number in numbers)


class _InterruptTimer(threading.Thread):
    """A timer thread that interrupts the process after it has run for some time without a stop."""

    def __init__(self, process: Any) -> None:
        super().__init__(name="findleaks-waking", daemon=True)
        self._process = process
        self._change = threading.Condition()
        self._at: Optional[float] = None
        self._sent = self._ended = False

    def set_timer(self, seconds: float) -> None:
        with self._change:
            first = self._at is None
            self._at, self._sent = time.monotonic() + seconds, False
            if first:
                self._change.notify()

    def stop_timer(self) -> bool:
        """Stop the timer, as the process has stopped. Return whether the timer may have interrupted
        it."""
        with self._change:
            self._at = None
            return self._sent

    def end(self) -> None:
        with self._change:
            self._ended = True
            self._at = None
            self._change.notify()
        self.join()

    def run(self) -> None:
        """Wait until the time is up. The time is checked a few times a second, as there are
        thousands of stops."""
        with self._change:
            while not self._ended:
                if self._at is None or self._sent:
                    self._change.wait(0.05)
                elif time.monotonic() < self._at:
                    self._change.wait(min(0.25, self._at - time.monotonic() + 0.001))
                else:
                    self._sent = True
                    self._process.SendAsyncInterrupt()
