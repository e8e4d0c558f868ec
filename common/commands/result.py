"""What commands return: JSON and text of one finding, with the warnings that belong to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from findleaks.audit.doubts import doubts
from findleaks.commands import SCHEMA, Door
from findleaks.report.text import printable
from findleaks.session import Session

Text = Callable[[int, Door], Iterable[str]]
"""(width, door) -> lines."""


class Plain:
    """A result with one JSON object; `text` is made only when text is wanted. Warnings stand last, in one place."""

    def __init__(self, session: Session, command: str, body: Mapping[str, Any], text: Text, status: int = 0) -> None:
        self.status = status
        self.warnings = [printable(w, 600) for w in [*session.target.warnings, *doubts(session)]]
        self._command = command
        self._body = body
        self._text = text

    def json(self) -> Iterable[Mapping[str, object]]:
        return [{"schema": SCHEMA, "command": self._command, **self._body, "warnings": self.warnings}]

    def text(self, width: int, door: Door) -> Iterable[str]:
        yield from self._text(width, door)
        for warning in self.warnings:
            yield f"warning: {warning}"
