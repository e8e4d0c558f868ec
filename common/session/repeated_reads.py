"""Read one process several times, with an interval between two reads."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator
from typing import Optional

from findleaks.errors import TargetError, UsageError
from findleaks.session import Session
from findleaks.session.host import LiveHost
from findleaks.target.base import Target
from findleaks.target.notes import AT_ENTRY, AT_PHDR, AT_RANDOM
from findleaks.target.processes import start_time
from findleaks.target.program import program_name
from findleaks.target.ptrace import has_ended, is_exiting


class Ended(TargetError):
    """The observed process has ended, or runs another program."""


def read_repeatedly(session: Session, seconds: float, count: int = 0, lasting: float = math.inf) -> Iterator[Session]:
    """Yield this session, then a new session of the same process after each interval.

    `seconds`: the interval; 0: only this session. `count`: number of sessions (0: no limit).
    `lasting`: total time in seconds. A session is closed when the next one is requested. Ctrl-C
    between two sessions ends the series. Raises Ended if the process has ended or has called
    exec."""
    if not seconds:
        yield session
        return
    host = session.host
    if not isinstance(host, LiveHost):
        raise UsageError("--every needs a process: `--pid PID`")
    began, number = time.monotonic(), 1
    program = _placement(session.target)
    yield session
    close_and_collect(session)
    while not count or number < count:
        due = number * seconds
        if due > lasting:
            return
        number = max(number + 1, int((time.monotonic() - began) / seconds) + 1) if not count else number + 1
        try:
            host.wait(max(0.0, began + due - time.monotonic()))
        except KeyboardInterrupt:
            return
        again = _reopen(session, host)
        try:
            if _placement(again.target) != program:
                # The process was already exiting when it was read after the stop.
                if not again.target.auxv:
                    raise Ended(f"pid {session.target.pid} has ended")
                name = program_name(again.target)
                raise Ended(f"pid {again.target.pid} runs another program now" + (f": {name}" if name else ""))
            yield again
        finally:
            close_and_collect(again)


def close_and_collect(session: Session) -> None:
    """Close a session, and free at once the copied memory to which its data refers.

    Heaps, graphs and readers of memory refer to each other in cycles. Python's collector counts
    objects instead of bytes, so it might run only after gigabytes of copies have accumulated. The
    last session of a program that ends needs only `Session.close`."""
    session.close()
    gc.collect()


def _reopen(session: Session, host: LiveHost) -> Session:
    try:
        again = host.reopen()
    except TargetError:
        pid = session.target.pid
        if pid is not None and (has_ended(pid) or is_exiting(pid)):
            raise Ended(f"pid {pid} has ended") from None
        raise
    again.pool_file = session.pool_file
    return again


def _placement(target: Target) -> tuple[Optional[int], ...]:
    """Return data that differs after an exec, and in a later process with the same pid: the start
    time, the addresses at which the kernel placed the program, and the address of its random bytes
    (getauxval(3))."""
    auxv = target.auxv
    return start_time(target.pid), auxv.get(AT_RANDOM), auxv.get(AT_PHDR), auxv.get(AT_ENTRY)
