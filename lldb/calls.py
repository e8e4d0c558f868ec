"""Decides which stops of a thread at a breakpoint are new calls.

LLDB may report one call twice (seen in 14 to 19), in these cases:

- Threads that stopped at breakpoints are stepped over them one by one. If an interrupt or a
  signal ends this, the remaining threads are reported again.
- A thread receives a signal at the first instruction. Its handler runs before this instruction,
  which then reaches the breakpoint again.
- A thread is interrupted right before the breakpoint traps. Up to LLDB 19 it is stepped over the
  breakpoint without a report, and is reported once more later.

A second call through the same stack has the same registers. But the number of context switches of
the thread differs, as each stop is a switch. A thread with no more switches did not run. A thread
with one more was stopped before an instruction. A new call takes at least two: the step over the
breakpoint, and the stop at it. There is one more if a SIGSTOP is pending, with which lldb-server
wanted to stop a thread that had already stopped."""

from __future__ import annotations

import re
import signal
from typing import NamedTuple

from findleaks.target.files import read_file

_STEP = 2  # Fewest context switches of a new call.
_SWITCHES = re.compile(rb"^voluntary_ctxt_switches:\s*(\d+)", re.M)
_PENDING, _CAUGHT = (re.compile(rb"^%b:\s*([0-9a-f]+)" % name, re.M) for name in (b"SigPnd", b"SigCgt"))


class Place(NamedTuple):
    """The position of a thread: an address with a breakpoint, and the stack pointer."""

    thread: int
    address: int
    sp: int


class Calls:
    """The last counted call of each thread of one local process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        # By thread: the place, and the fewest switches of a new call.
        self._last: dict[int, tuple[Place, int]] = {}
        self._to_return: set[Place] = set()  # Where signal handlers return to counted calls.

    def is_new(self, at: Place, number: int = 0) -> bool:
        """Whether a stopped thread is at a call that was not counted yet.

        `number`: the signal that stopped it; 0: the breakpoint. It must be called at each stop, for
        each thread at a breakpoint."""
        try:
            status = read_file(f"/proc/{self._pid}/task/{at.thread}/status")
        except OSError:  # The thread was killed.
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
    """Whether a signal is in one of the signal sets of /proc/PID/status."""
    found = signals.search(status)
    return bool(found and int(found[1], 16) >> (number - 1) & 1)
