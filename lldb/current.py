"""`findleaks.current()` in LLDB: the selected process as a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lldb
from findleaks.errors import TargetError
from findleaks.lldb.target import subject
from findleaks.session import Session


def open_current(debugger: Any = None) -> tuple[Session, Callable[[], bool]]:
    """Return the session, and a function that returns whether the process has not run since. Raises
    TargetError if there is no process, or if it is running."""
    debugger = debugger if debugger is not None else lldb.debugger
    if debugger is None:
        raise TargetError("no debugger; pass the SBDebugger to findleaks.current()")
    found = subject(debugger, None, None)
    session = Session(found.open())

    def is_valid() -> bool:
        try:
            return subject(debugger, None, None).state == found.state
        except TargetError:
            return False

    return session, is_valid
