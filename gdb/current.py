"""`findleaks.current()` in GDB: the selected inferior as a session."""

from __future__ import annotations

from collections.abc import Callable

import gdb
from findleaks.errors import UsageError
from findleaks.gdb.register import STALE
from findleaks.gdb.target import subject
from findleaks.session import Session


def open_current(debugger: object = None) -> tuple[Session, Callable[[], bool]]:
    """Return the session, and a function that returns whether the inferior has not run since.
    Raises TargetError if there is no inferior, or if it is running."""
    if debugger is not None:
        raise UsageError("current() takes no argument `debugger` in GDB; select the inferior instead")
    found = subject()
    session, has_run = Session(found.open()), False
    events = [getattr(gdb.events, name) for name in STALE if hasattr(gdb.events, name)] if found.live else []

    def note(event: object) -> None:
        nonlocal has_run
        if not has_run:
            has_run = True
            for one in events:
                one.disconnect(note)

    for one in events:
        one.connect(note)
    return session, lambda: not has_run
