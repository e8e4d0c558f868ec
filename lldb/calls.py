"""Which of a thread's stops at a breakpoint are calls, each once.

LLDB reports one call again in two cases (seen in 14 to 19). All threads that stopped at breakpoints
are stepped over them one by one; where an interrupt or a signal ends that, those whose turn did not
come are reported anew. And a signal that a thread takes on the first instruction has its handler
run before that, which then is at the breakpoint again. A thread that is interrupted right before
the breakpoint traps is stepped over it with no report up to LLDB 19, and reported once more later.

A second call through the same stack has the same registers. What differs is how often the kernel
took the thread off the processor: each stop is such a switch. A thread with no more switches did
not run, one with a single one was stopped before an instruction; a new call takes two, that of the
step over the breakpoint and that at it. One more has a thread with a SIGSTOP pending, by which
lldb-server wanted to stop it as it stopped by itself."""

from __future__ import annotations

import re
import signal
from typing import NamedTuple

from findleaks.target.files import read_file

_STEP = 2  # switches that a new call takes, at least
_SWITCHES = re.compile(rb"^voluntary_ctxt_switches:\s*(\d+)", re.M)
_PENDING, _CAUGHT = (re.compile(rb"^%b:\s*([0-9a-f]+)" % name, re.M) for name in (b"SigPnd", b"SigCgt"))


class Place(NamedTuple):
    """Where a thread is: an address with a breakpoint, and the stack pointer."""

    thread: int
    address: int
    sp: int


class Calls:
    """The calls of one local process's threads that were counted last."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._last: dict[int, tuple[Place, int]] = {}  # by thread; the least switches of a new call
        self._to_return: set[Place] = set()  # where signal handlers return to, for calls counted

    def is_new(self, at: Place, number: int = 0) -> bool:
        """Whether a thread that stopped, for a signal of this number or (0) the breakpoint, is at a
        call that was not counted yet. To be asked at each stop, of each thread at a breakpoint."""
        try:
            status = read_file(f"/proc/{self._pid}/task/{at.thread}/status")
        except OSError:  # the thread was killed
            return False
        found = _SWITCHES.search(status)
        switches = int(found[1]) if found else 0
        last, least = self._last.get(at.thread, (at, 0))
        self._last[at.thread] = at, switches + _STEP + _contains(_PENDING, status, signal.SIGSTOP)
        known = last == at and switches < least
        if not known and at in self._to_return:
            self._to_return.remove(at)
            known = True
        if number and _contains(_CAUGHT, status, number):
            self._to_return.add(at)
        return not known


def _contains(signals: re.Pattern[bytes], status: bytes, number: int) -> bool:
    """Whether a signal is in one of the sets of /proc/PID/status."""
    found = signals.search(status)
    return bool(found and int(found[1], 16) >> (number - 1) & 1)
