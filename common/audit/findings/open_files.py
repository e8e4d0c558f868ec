"""Report a file that is opened again and again."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.formatting import number, shorten
from findleaks.runtimes.finding import Finding
from findleaks.session import Session
from findleaks.target.base import MEMFD

MANY = 100  # descriptors of one file; a pool of database connections may have some tens


def find_open_files(session: Session) -> Iterator[Finding]:
    """Yield one finding if at least MANY open descriptors refer to one file.

    Many sockets or pipes are normal, because a server has one for each connection. Memfds with one
    name are different files."""
    state = session.target.kernel_state()
    counts = state.opened.items() if state is not None else ()
    opened = {name: count for name, count in counts if name.startswith("/") and not name.startswith(MEMFD)}
    name, count = max(opened.items(), key=lambda one: one[1], default=("", 0))
    if count < MANY:
        return
    title = f"{number(count)} open file descriptors refer to one file, {shorten(name, 200)}."
    cause = "Each of them takes kernel memory until it is closed. No figure above contains this memory."
    commands = ("count open", "count close") if session.target.live else ()
    yield Finding("open-files", 0, title, cause, ("close each descriptor",), commands, {"file": name, "descriptors": count}, 0)
