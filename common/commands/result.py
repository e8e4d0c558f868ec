"""Results of commands: JSON and text of one finding, with its warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from findleaks.audit.diagnostics import result_warnings
from findleaks.commands import SCHEMA, Invocation
from findleaks.engine.load import missing_kernel, stale_kernel
from findleaks.formatting import printable, wrapped
from findleaks.session import Session

Text = Callable[[int, Invocation], Iterable[str]]
"""(columns, invocation) -> lines."""


SLOW = 3.0
"""Seconds of work after which a missing C kernel is worth a warning."""


def warnings_of(session: Session) -> list[str]:
    """Warnings on what limits the result, printable."""
    unread = session.unread.warning if "unread" in vars(session) else ""
    unnamed = session.debug_files.warning if "debug_files" in vars(session) else ""
    found = [*session.target.warnings, *result_warnings(session), *(warning for warning in (unread, unnamed) if warning), *_slow(session)]
    return [printable(warning, 600) for warning in found]


def _slow(session: Session) -> list[str]:
    if session.engine.name != "pure" or (sum(session.seconds.values()) < SLOW and not stale_kernel()):
        return []
    why = missing_kernel()
    return [f"findleaks runs {why}"] if why else []


def warning_lines(warnings: Iterable[str], width: int) -> Iterator[str]:
    """The warnings as text, for the end of the output."""
    for warning in warnings:
        yield from wrapped(f"warning: {warning}", width)


class Plain:
    """Result with one JSON object. `text` is called only if text is wanted."""

    def __init__(self, session: Session, command: str, body: Mapping[str, Any], text: Text, status: int = 0) -> None:
        self.status = status
        self.warnings = warnings_of(session)
        self._command = command
        self._body = body
        self._text = text

    def json(self) -> Iterable[Mapping[str, object]]:
        return [{"schema": SCHEMA, "command": self._command, **self._body, "warnings": self.warnings}]

    def text(self, width: int, invocation: Invocation) -> Iterable[str]:
        yield from self._text(width, invocation)
        yield from warning_lines(self.warnings, width)
