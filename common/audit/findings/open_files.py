"""Report files that are opened again and again."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.formatting import number, shorten
from findleaks.runtimes.finding import Finding
from findleaks.session import Session
from findleaks.target.base import MEMFD

MANY = 100  # descriptors of one file; a pool of database connections may have some tens
_SHOWN = 3  # files that are named


def find_open_files(session: Session) -> Iterator[Finding]:
    """Yield one finding about the files to each of which at least MANY open descriptors refer.

    Many sockets or pipes are normal, because a server has one for each connection. Memfds with one
    name are different files."""
    state = session.target.kernel_state()
    counts = state.opened.items() if state is not None else ()
    opened = {name: count for name, count in counts if name.startswith("/") and not name.startswith(MEMFD)}
    many = sorted(((count, name) for name, count in opened.items() if count >= MANY), key=lambda one: (-one[0], one[1]))
    if not many:
        return
    total, (count, name) = sum(count for count, _ in many), many[0]
    if len(many) == 1:
        title = f"{number(count)} open file descriptors refer to one file, {shorten(name, 200)}."
    else:
        shown = [f"{number(count)} to {shorten(name, 200)}" for count, name in many[:_SHOWN]]
        shown += [f"{number(len(many) - _SHOWN)} more files"] if len(many) > _SHOWN else []
        title = f"{number(total)} open file descriptors refer to {len(many)} files: {', '.join(shown[:-1])} and {shown[-1]}."
    cause = "Each of them takes kernel memory until it is closed. No figure above contains this memory."
    commands = ("count open", "count close") if session.target.live else ()
    facts = {"file": name, "descriptors": count, "files": [{"file": name, "descriptors": count} for count, name in many]}
    yield Finding("open-files", 0, title, cause, ("close each descriptor",), commands, facts, 0)
