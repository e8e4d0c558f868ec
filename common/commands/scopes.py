"""`scopes`: V8's handle scopes, what they hold, and which frames opened them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Optional

from findleaks.commands import Invocation, command
from findleaks.commands.limits import add_limit, first, in_text
from findleaks.commands.result import Plain, fields
from findleaks.formatting import blocks, counted, number, printable, size, some, table, wrapped
from findleaks.runtimes.v8 import globals as globals_
from findleaks.runtimes.v8.globals import Globals
from findleaks.runtimes.v8.isolates import Isolate, isolates
from findleaks.runtimes.v8.layout import Layout, Underivable, derive
from findleaks.runtimes.v8.scopes import Scope
from findleaks.runtimes.v8.scopes import scopes as scopes_of
from findleaks.runtimes.v8.values import Held
from findleaks.runtimes.v8.values import Namer as Values
from findleaks.session import Session
from findleaks.unwind.frames import Unwinder
from findleaks.unwind.stacks import NamedFrame, Namer, without_parameters

KINDS = 10  # kinds of values printed as text without --limit
MANY = 10_000  # handles from which a scope hoards; a callback seldom needs a block of 1,022


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_limit(parser, "kinds of values of each isolate", KINDS)


HEAP = "napi_open_handle_scope"  # Node-API function that opens the scopes allocated on the heap

COUNT = "count MakeCallback --outside-scope v8 --for 10"
"""Command that names the callers who leave their handles to the outermost scope."""

UNREACHED = "a frame that could not be reached"  # opener of a scope that unwinding did not reach
SHOWN = 6  # frames inside a hoarding scope that the text names, at most


class Open(NamedTuple):
    """A scope, the frame that opened it (None: not found) with its label, and the frames inside."""

    scope: Scope
    opener: Optional[NamedFrame]
    label: str
    inside: list[NamedFrame]


class Found(NamedTuple):
    """An isolate, the values its handles hold, its open scopes, and its global handles."""

    isolate: Isolate
    held: list[Held]
    scopes: list[Open]
    globals: Optional[Globals]


class Scopes:
    """The handle scopes of all isolates; `why` none could be read, else ""."""

    def __init__(self, session: Session, limit: Optional[int]) -> None:
        target = session.target
        self.limit, self.live = limit, target.live
        self.found: list[Found] = []
        self.why = ""
        self.bytes = 0
        self.warnings = [printable(warning, 600) for warning in target.warnings]
        try:
            self._read(session, derive(target))
        except Underivable as error:
            self.why = f"no handle scopes can be read: {error}"
        else:
            if not self.found:
                self.why = "no thread is in an isolate: V8 is loaded, but not running, or its thread-local storage cannot be read"

    def _read(self, session: Session, layout: Layout) -> None:
        self.bytes = 8 * layout.handles
        unwinder = Unwinder(session.target)
        namer, values = Namer(session.target, unwinder), Values(session.target, session.engine)
        nodes = globals_.derive(session.target)
        if nodes is None:
            self.warnings.append(
                "global handles are not counted: v8::internal::GlobalHandles::RecordStats is not the code that was expected"
            )
        for isolate in isolates(session.target, layout):
            session.report_progress("reading handles", 0.0)
            open_ = [_named(namer, scope) for scope in scopes_of(session.target, session.engine, unwinder, layout, isolate)]
            kept = globals_.read(session.target, nodes, isolate.address) if nodes is not None else None
            self.found.append(Found(isolate, values.held(isolate.values), open_, kept))
            self.warnings += [problem for problem in (isolate.problem, kept.problem if kept is not None else "") if problem]
            found = sum(one.scope.thread is not None for one in open_)
            if layout.counts and found != isolate.level and not isolate.problem:
                of = f"isolate {isolate.address:#x} has {isolate.level:,} open scopes, {found:,} were found"
                self.warnings.append(f"{of}: handles may be counted to a neighbour of the scope that owns them")

    def json(self) -> Mapping[str, object]:
        return {"isolates": [self._isolate(found) for found in self.found], "problem": self.why or None}

    def _isolate(self, found: Found) -> Mapping[str, object]:
        isolate = found.isolate
        return {
            "address": hex(isolate.address),
            "threads": [thread.tid for thread in isolate.threads],
            "level": isolate.level,
            "handles": isolate.handles,
            "blocks": len(isolate.blocks),
            "bytes": len(isolate.blocks) * self.bytes,
            "values": [fields(held, "value", "handles", "objects") for held in first(found.held, self.limit)],
            "scopes": [
                {
                    "address": hex(one.scope.address) if one.scope.address else None,
                    "frame": one.label or None,
                    "function": one.opener.function or None if one.opener is not None else None,
                    "module": one.opener.module or None if one.opener is not None else None,
                    **fields(one.scope, "heap", "thread", "handles"),
                    "inside": [frame.function or frame.label() for frame in one.inside],
                }
                for one in found.scopes
            ],
            "globals": _globals(found.globals),
            "problem": isolate.problem or None,
        }

    def text(self, width: int, invocation: Invocation) -> Iterator[str]:
        if self.why:
            yield self.why
        for at, found in enumerate(self.found):
            if at:
                yield ""
            yield from self._text(found, width, invocation)

    def _text(self, found: Found, width: int, invocation: Invocation) -> Iterator[str]:
        isolate = found.isolate
        count = len(isolate.blocks)
        held = f"{counted(isolate.handles, 'handle')} in {blocks(count)}, {size(count * self.bytes)}"
        yield f"Isolate {isolate.address:#x}: {held}; scope level {isolate.level}"
        yield ""
        rows = [
            (number(one.scope.handles), one.label or "before the scopes that were found", str(one.scope.thread or ""))
            for one in found.scopes
        ]
        yield from table(("HANDLES", "OPENED BY", "THREAD"), rows, (0,), width, cut=1)
        shown = first(found.held, in_text(self.limit, KINDS))
        if shown:
            yield ""
            whole = max(isolate.handles, 1)
            kinds = [(number(h.handles), _share(h.handles, whole), number(h.objects), printable(h.value, 60)) for h in shown]
            yield from table(("HANDLES", "", "OBJECTS", "HOLD"), kinds, (0, 1, 2), width, cut=3)
            if len(shown) < len(found.held):
                yield f"  … {counted(len(found.held) - len(shown), 'more kind')} (--limit 0)"
        kept = found.globals
        if kept is not None:
            yield ""
            held = f"{number(kept.handles)} in {blocks(kept.blocks)}, {size(kept.bytes)}; {number(kept.weak)} of them weak"
            yield from wrapped(f"  Global handles: {held}", width)
        yield ""
        yield from self._verdict(found, width, invocation)

    def _verdict(self, found: Found, width: int, invocation: Invocation) -> Iterator[str]:
        most = max(found.scopes, key=lambda one: one.scope.handles, default=None)
        if most is None or most.scope.handles < MANY:
            yield "  No scope hoards handles."
            return
        where = f"the scope opened by {most.label}" if most.label else "a scope older than those that were found"
        top = found.held[0] if found.held else None
        whole = found.isolate.handles
        share = f"; {_share(top.handles, whole)} of all hold {top.value}" if top is not None and 2 * top.handles > whole else ""
        yield from wrapped(f"  One scope hoards: {number(most.scope.handles)} handles belong to {where}{share}.", width)
        inside = [_inside(frame) for frame in most.inside if frame.function]
        if inside:
            yield from wrapped(f"  Inside it now: {some(inside, SHOWN)}.", width)
        yield from wrapped("  Handles made where no nearer scope is open are freed only when that one closes.", width)
        # Callers of the outermost scope can be counted: see runtimes/rules.py.
        if most is found.scopes[-1]:
            if self.live:
                yield from invocation.next(width, COUNT)
            else:
                yield from wrapped(f"  In a process that runs, `{invocation.prog} {COUNT}` names who makes them.", width)


def _named(namer: Namer, scope: Scope) -> Open:
    opener = namer.name(scope.frame) if scope.frame is not None else None
    inside = [namer.name(frame) for frame in scope.inside]
    if opener is None:
        return Open(scope, None, HEAP if scope.heap else UNREACHED if scope.thread is not None else "", inside)
    if not opener.function and not opener.module:
        called = next((without_parameters(frame.function) for frame in inside if frame.function), "")
        return Open(scope, opener, f"generated code that calls {called}" if called else f"generated code at {opener.label()}", inside)
    return Open(scope, opener, _label(opener), inside)


def _globals(kept: Optional[Globals]) -> Optional[Mapping[str, object]]:
    if kept is None:
        return None
    return {**fields(kept, "handles", "weak", "blocks", "bytes"), "problem": kept.problem or None}


def _inside(frame: NamedFrame) -> str:
    return printable(without_parameters(frame.function), 100) + (f" ({frame.module})" if frame.module else "")


def _label(frame: NamedFrame) -> str:
    """Label of a frame, the function without its parameters, which can be very long."""
    return frame._replace(function=without_parameters(frame.function)).label()


def _share(part: int, whole: int) -> str:
    """Percentage; "100 %" only if it is exactly all."""
    value = 100 * part / whole
    if value < 1:
        return "< 1 %" if part else ""
    return f"{value:.0f} %" if part == whole or value < 99 else f"{min(value, 99.99):.2f} %"


@command(arguments=_arguments)
def scopes(session: Session, args: argparse.Namespace) -> Plain:
    """Audit V8's handle scopes: how many handles each isolate has, what they hold, and which frame
    opened the scope that will free them. A leak of handles shows as a scope that hoards: calls into
    JavaScript that open no HandleScope leave their handles to the outermost one, which may never
    close. Offsets come from V8's own code; node binaries of 0.10 to 24 need no debug information.
    """
    found = Scopes(session, args.limit)
    return Plain(session, "scopes", found.json, found.text, 2 if found.why else 0, found.warnings)
