"""`findleaks.current()` in LLDB: the selected process as a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lldb
from findleaks.errors import TargetError
from findleaks.lldb.target import subject
from findleaks.session import Session


def open_current(debugger: Any = None) -> tuple[Session, Callable[[], bool]]:
    """The session, and whether the process is still at the moment of it. TargetError: there is no
    process, or it runs."""
    debugger = debugger if debugger is not None else lldb.debugger
    if debugger is None:
        raise TargetError("no debugger: pass the SBDebugger to findleaks.current()")
    found = subject(debugger, None, None)
    session = Session(found.open())

    def is_valid() -> bool:
        try:
            return subject(debugger, None, None).state == found.state
        except TargetError:
            return False

    return session, is_valid
