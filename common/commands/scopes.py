"""`scopes`: V8's handle scopes, what they hold, and who opened them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from findleaks.commands import SCHEMA, Door, command
from findleaks.commands.result import warning_lines
from findleaks.report.text import number, printable, size, table, wrapped
from findleaks.runtimes.v8.isolates import Isolate, isolates
from findleaks.runtimes.v8.layout import Layout, Underivable, derive
from findleaks.runtimes.v8.scopes import Scope
from findleaks.runtimes.v8.scopes import scopes as scopes_of
from findleaks.runtimes.v8.values import Held
from findleaks.runtimes.v8.values import Namer as Values
from findleaks.session import Session
from findleaks.unwind.frames import Unwinder
from findleaks.unwind.stacks import Named, Namer, bare
from findleaks.words import count_word

MANY = 10_000
"""Handles of one scope from which on it hoards: a block has 1,022, and a callback seldom needs one."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=count_word, default=10, help="kinds of values to print of each isolate (10; 0: all); JSON has all")


HEAP = "napi_open_handle_scope"
"""What opens scopes that stand on the heap."""


class Found(NamedTuple):
    isolate: Isolate
    held: list[Held]
    scopes: list[tuple[Scope, str]]  # with the label of the frame


class Scopes:
    """What `scopes` found; status 2 where nothing could be said."""

    def __init__(self, session: Session, limit: int) -> None:
        target = session.target
        self.limit = limit
        self.found: list[Found] = []
        self.why = ""
        self.bytes = 0
        self.warnings = [printable(warning, 600) for warning in target.warnings]
        try:
            layout = derive(target)
        except Underivable as error:
            self.why = f"no handle scopes can be read: {error}"
        else:
            self._read(session, layout)
            if not self.found:
                self.why = "no thread is in an isolate: V8 is loaded, but not running, or its thread-local storage cannot be read"
        self.status = 2 if self.why else 0

    def _read(self, session: Session, layout: Layout) -> None:
        self.bytes = 8 * layout.handles
        unwinder = Unwinder(session.target)
        namer, values = Namer(session.target, unwinder), Values(session.target, session.engine)
        for isolate in isolates(session.target, layout):
            session.tell("reading handles", 0.0)
            held = values.held(isolate.values)
            open_ = scopes_of(session.target, session.engine, unwinder, layout, isolate)
            labels = [_label(namer.name(scope.frame)) if scope.frame is not None else HEAP if scope.heap else "" for scope in open_]
            self.found.append(Found(isolate, held, list(zip(open_, labels))))
            if isolate.problem:
                self.warnings.append(isolate.problem)

    def json(self) -> Iterable[Mapping[str, object]]:
        body = [self._isolate(found) for found in self.found]
        return [{"schema": SCHEMA, "command": "scopes", "isolates": body, "problem": self.why or None, "warnings": self.warnings}]

    def _isolate(self, found: Found) -> Mapping[str, object]:
        isolate = found.isolate
        return {
            "address": hex(isolate.address),
            "threads": [thread.tid for thread in isolate.threads],
            "level": isolate.level,
            "handles": isolate.handles,
            "blocks": len(isolate.blocks),
            "bytes": len(isolate.blocks) * self.bytes,
            "values": [{"value": held.value, "handles": held.handles, "objects": held.objects} for held in found.held],
            "scopes": [
                {
                    "address": hex(scope.address) if scope.address else None,
                    "frame": label or None,
                    "thread": scope.thread,
                    "handles": scope.handles,
                }
                for scope, label in found.scopes
            ],
            "problem": isolate.problem or None,
        }

    def text(self, width: int, door: Door) -> Iterator[str]:
        if self.why:
            yield self.why
        for found in self.found:
            yield from self._text(found, width)
        yield from warning_lines(self.warnings, width)

    def _text(self, found: Found, width: int) -> Iterator[str]:
        isolate = found.isolate
        count = len(isolate.blocks)
        blocks = f"{number(count)} block{'' if count == 1 else 's'}"
        held = f"{number(isolate.handles)} handle{'' if isolate.handles == 1 else 's'} in {blocks}, {size(count * self.bytes)}"
        yield f"Isolate {isolate.address:#x}: {held}; scope level {isolate.level}"
        yield ""
        rows = [
            (number(scope.handles), label or "before the scopes that were found", str(scope.thread or "")) for scope, label in found.scopes
        ]
        yield from table(("HANDLES", "OPENED BY", "THREAD"), rows, (0,), width, cut=1)
        shown = found.held[: self.limit or None]
        if shown:
            yield ""
            whole = max(isolate.handles, 1)
            kinds = [(number(h.handles), _share(h.handles, whole), number(h.objects), printable(h.value, 60)) for h in shown]
            yield from table(("HANDLES", "", "OBJECTS", "HOLD"), kinds, (0, 1, 2), width, cut=3)
            if len(shown) < len(found.held):
                yield f"  … {len(found.held) - len(shown)} more kinds (--limit 0)"
        yield ""
        yield from self._verdict(found, width)

    def _verdict(self, found: Found, width: int) -> Iterator[str]:
        most, label = max(found.scopes, key=lambda one: one[0].handles, default=(None, ""))
        if most is None or most.handles < MANY:
            yield "  No scope hoards handles."
            return
        where = f"the scope opened in {label}" if label else "a scope older than those that were found"
        top = found.held[0]
        share = f", {_share(top.handles, found.isolate.handles)} of all hold {top.value}" if found.held else ""
        yield from wrapped(f"  One scope hoards: {number(most.handles)} handles belong to {where}{share}.", width)
        yield "  Handles made where no nearer scope is open are freed only when that one closes."


def _label(frame: Named) -> str:
    """The function without its parameters, which fill lines."""
    return frame._replace(function=bare(frame.function)).label()


def _share(part: int, whole: int) -> str:
    """ "100 %" only of all."""
    value = 100 * part / whole
    if value < 1:
        return "< 1 %" if part else ""
    return f"{value:.0f} %" if part == whole or value < 99 else f"{min(value, 99.99):.2f} %"


@command(arguments=_arguments)
def scopes(session: Session, args: argparse.Namespace) -> Scopes:
    """Audit V8's handle scopes: how many handles each isolate has, what they hold, and which frame opened the scope that will free them.
    A leak of handles shows as a scope that hoards: calls into JavaScript that open no HandleScope leave their handles to the outermost
    one, which may never close. Offsets come from V8's own code; node binaries of 0.10 to 24 need no debug information."""
    return Scopes(session, args.limit)
