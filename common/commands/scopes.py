"""The `scopes` command: list V8's handle scopes, what their handles refer to, and the frames that
opened the scopes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial

from findleaks.answers.scopes import describe_scopes
from findleaks.commands import Invocation, command
from findleaks.commands.limits import add_limit, first, in_text
from findleaks.commands.result import Plain
from findleaks.formatting import blocks, format_count, number, printable, size, some, table, wrap
from findleaks.results.scopes import InnerFunction, Isolate, Scopes
from findleaks.session import Session
from findleaks.value_classes import replace

KINDS = 10  # Maximum number of kinds of values printed as text without --limit.
# A scope with at least this many handles is reported as hoarding. A callback seldom needs a block
# of 1,022 handles.
MANY = 10_000
SHOWN = 6  # Maximum number of frames inside a hoarding scope that the text names.

COUNT = "count MakeCallback --outside-scope v8 --for 10"
"""The command that names the callers whose handles belong to the outermost scope."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_limit(parser, "kinds of values of each isolate", KINDS)


@command(arguments=_arguments)
def scopes(session: Session, args: argparse.Namespace) -> Plain:
    """List V8's handle scopes: the number of handles of each isolate, what they refer to, and the
    frame that opened each scope. A leak of handles appears as one scope with very many handles:
    code that calls into JavaScript without a HandleScope leaves its handles to the outermost scope,
    which may never close. Offsets are read from V8's own code; node binaries of 0.10 to 24 need no
    debug information."""
    found, warnings = describe_scopes(session)
    shown = replace(found, isolates=[replace(one, values=first(one.values, args.limit)) for one in found.isolates])
    text = partial(_text, found, in_text(args.limit, KINDS), session.target.live)
    return Plain(session, "scopes", shown, text, 2 if found.problem else 0, warnings)


def _text(found: Scopes, limit: int, live: bool, width: int, invocation: Invocation) -> Iterator[str]:
    if found.problem:
        yield found.problem
    for at, isolate in enumerate(found.isolates):
        if at:
            yield ""
        yield from _isolate(isolate, limit, width)
        yield ""
        yield from _verdict(isolate, live, width, invocation)


def _isolate(isolate: Isolate, limit: int, width: int) -> Iterator[str]:
    held = f"{format_count(isolate.handles, 'handle')} in {blocks(isolate.blocks)}, {size(isolate.bytes)}"
    yield f"Isolate {isolate.address:#x}: {held}; scope level {isolate.level}"
    yield ""
    rows = [(number(one.handles), one.frame or "before the scopes that were found", str(one.thread or "")) for one in isolate.scopes]
    yield from table(("HANDLES", "OPENED BY", "THREAD"), rows, (0,), width, cut=1)
    shown = first(isolate.values, limit)
    if shown:
        yield ""
        whole = max(isolate.handles, 1)
        kinds = [(number(one.handles), _share(one.handles, whole), number(one.objects), printable(one.value, 60)) for one in shown]
        yield from table(("HANDLES", "", "OBJECTS", "HOLD"), kinds, (0, 1, 2), width, cut=3)
        if len(shown) < len(isolate.values):
            yield f"  … {format_count(len(isolate.values) - len(shown), 'more kind')} (--limit 0)"
    kept = isolate.globals
    if kept is not None:
        yield ""
        held = f"{number(kept.handles)} in {blocks(kept.blocks)}, {size(kept.bytes)}; {number(kept.weak)} of them weak"
        yield from wrap(f"  Global handles: {held}", width)


def _verdict(isolate: Isolate, live: bool, width: int, invocation: Invocation) -> Iterator[str]:
    most = max(isolate.scopes, key=lambda one: one.handles, default=None)
    if most is None or most.handles < MANY:
        yield f"  No scope has {number(MANY)} handles or more."
        return
    where = f"the scope opened by {most.frame}" if most.frame else "an outer scope that was not found"
    top = isolate.values[0] if isolate.values else None
    whole = isolate.handles
    share = f"; {_share(top.handles, whole)} of all refer to {top.value}" if top is not None and 2 * top.handles > whole else ""
    yield from wrap(f"  Too many handles in one scope: {number(most.handles)} handles belong to {where}{share}.", width)
    if most.inner_functions:
        yield from wrap(f"  Functions that run in it now: {some([_inside(one) for one in most.inner_functions], SHOWN)}.", width)
    yield from wrap("  Handles created while no inner scope is open are freed only when that scope closes.", width)
    # `count` can find only the callers of the outermost scope: see runtimes/rules.py.
    if most is isolate.scopes[-1]:
        if live:
            yield from invocation.next(COUNT)
        else:
            yield from wrap(f"  In a running process, `{invocation.prog} {COUNT}` lists the functions that create them.", width)


def _inside(one: InnerFunction) -> str:
    return printable(one.function, 100) + (f" ({one.module})" if one.module else "")


def _share(part: int, whole: int) -> str:
    """Return a percentage. It is "100 %" only if the part equals the whole."""
    value = 100 * part / whole
    if value < 1:
        return "< 1 %" if part else ""
    return f"{value:.0f} %" if part == whole or value < 99 else f"{min(value, 99.99):.2f} %"
