"""Results of commands: JSON and text of one finding, with its warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Optional, Union

from findleaks.audit.diagnostics import result_warnings, target_warnings
from findleaks.commands import Invocation
from findleaks.commands.output import Written
from findleaks.engine.load import missing_native, stale_native
from findleaks.engine.terms import State
from findleaks.formatting import printable, wrapped
from findleaks.results.record import SCHEMA, Record, plain
from findleaks.session import Session

Text = Callable[[int, Invocation], Iterable[str]]  # (columns, invocation) -> lines
Found = Union[Record, Mapping[str, Any]]  # a result, or the fields of a JSON object
Body = Union[Found, Callable[[], Found]]
SLOW = 3.0  # seconds of work after which a missing C engine is worth a warning


def warnings_of(session: Session, unread_reported: bool = False) -> list[str]:
    """Warnings on what limits the result, printable. `unread_reported`: see result_warnings."""
    computed = [vars(session)[name].warning for name in ("unread", "debug_files") if name in vars(session)]
    recorded = session.sites.warnings if "sites" in vars(session) else []
    found = [*target_warnings(session), *result_warnings(session, unread_reported), *filter(None, computed), *recorded]
    found += [*source_warnings(session), *_slow(session)]
    return [printable(warning, 600) for warning in found]


def source_warnings(session: Session) -> list[str]:
    """Why lines or names are missing that there may be."""
    return session.sources.warnings if "sources" in vars(session) else []


def _slow(session: Session) -> list[str]:
    arch = session.target.arch
    if session.engine.name != "pure" or (sum(session.seconds.values()) < SLOW and not stale_native(arch)):
        return []
    why = missing_native(arch)
    return [f"findleaks runs {why}"] if why else []


def warning_lines(warnings: Iterable[str], width: int) -> Iterator[str]:
    for warning in warnings:
        yield from wrapped(f"warning: {warning}", width)


def written_json(written: Optional[Written]) -> dict[str, Any]:
    """The key `written` of the JSON of a command that wrote a file."""
    return {} if written is None else {"written": written.json()}


def written_lines(written: Optional[Written], width: int) -> Iterator[str]:
    if written is not None:
        yield ""
        for line in written.lines():
            yield from wrapped(line, width)


def blocks_status(session: Session) -> int:
    """Exit status: 2 if no allocator's blocks were found, else 0."""
    return 0 if session.directory.blocks.totals(State.IN_USE).blocks else 2


def answer_status(session: Session) -> int:
    """Exit status of commands that also answer for a process without an allocator's blocks, if the
    heap of its runtime is known (Go's): 2 if neither was found, else 0."""
    known = any(part.bytes for runtime in session.runtimes for part in runtime.parts())
    return 0 if known else blocks_status(session)


def fields(source: object, *names: str) -> dict[str, Any]:
    """These attributes of `source` as fields of a JSON object."""
    return {name: getattr(source, name) for name in names}


class Plain:
    """Result with one JSON object. `text` and a function `body` are called only if wanted.
    `warnings` replace those of the session, which read the heaps; `further` ones follow them."""

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
        self.written: Optional[Written] = None  # the file that was asked for
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
            self._session.done()  # making it may have shown progress
        return [{"schema": SCHEMA, "command": self._command, **plain(body), **written_json(self.written), "warnings": self.warnings}]

    def text(self, width: int, invocation: Invocation) -> Iterable[str]:
        yield from self._text(width, invocation)
        yield from written_lines(self.written, width)
        yield from warning_lines(self.warnings, width)
