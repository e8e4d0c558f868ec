"""Write results of commands as JSON and text, with their warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Optional, Union

from findleaks.answers.warnings import warnings_of
from findleaks.commands import Invocation
from findleaks.commands.output import file_lines
from findleaks.engine.terms import State
from findleaks.formatting import printable, wrap
from findleaks.results.record import Record
from findleaks.results.written import WrittenFile, document
from findleaks.session import Session

Text = Callable[[int, Invocation], Iterable[str]]  # A function (columns, invocation) -> lines
Body = Union[Record, Callable[[], Record]]


def warning_lines(warnings: Iterable[str], width: int) -> Iterator[str]:
    for warning in warnings:
        yield from wrap(f"warning: {warning}", width)


def written_lines(written: Optional[WrittenFile], width: int) -> Iterator[str]:
    if written is not None:
        yield ""
        for line in file_lines(written):
            yield from wrap(line, width)


def blocks_status(session: Session) -> int:
    """Return the exit status: 2 if no allocator's blocks were found, else 0."""
    return 0 if session.directory.blocks.totals(State.IN_USE).blocks else 2


def answer_status(session: Session) -> int:
    """Return the exit status: 2 if no heap was found, else 0. This is for commands that also
    support a process whose only heap is that of its runtime (Go)."""
    known = any(part.bytes for runtime in session.runtimes for part in runtime.parts())
    return 0 if known else blocks_status(session)


def fields(source: object, *names: str) -> dict[str, Any]:
    """Return these attributes of `source` as fields of a JSON object."""
    return {name: getattr(source, name) for name in names}


class Plain:
    """A result with one JSON object. `text` is called only for text, and `body`, if it is a
    function, only for JSON. `warnings` replace those of the session; `further` warnings follow."""

    def __init__(
        self,
        session: Session,
        command: str,
        body: Body,
        text: Text,
        status: int = 0,
        warnings: Optional[Iterable[str]] = None,
        further: Iterable[str] = (),
    ) -> None:
        self.status = status
        self.written: Optional[WrittenFile] = None  # The file of -o.
        self.warnings = list(warnings_of(session) if warnings is None else warnings)
        self.warnings += [printable(warning, 600) for warning in further]
        self._session = session
        self._command = command
        self._body = body
        self._text = text

    def json(self) -> Iterable[Mapping[str, object]]:
        body = self._body
        if callable(body):
            body = body()
            self._session.end_progress()  # Computing the body may have shown progress.
        return [document(self._command, body, self.warnings, self.written)]

    def text(self, width: int, invocation: Invocation) -> Iterable[str]:
        yield from self._text(width, invocation)
        yield from written_lines(self.written, width)
        yield from warning_lines(self.warnings, width)
