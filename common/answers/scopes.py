"""Answer the question "which handle scopes contain V8's handles?"."""

from __future__ import annotations

from typing import NamedTuple, Optional

from findleaks.results.scopes import GlobalHandles, HandleScope, HandleValue, InnerFunction, Isolate, Scopes
from findleaks.runtimes.v8 import globals as globals_
from findleaks.runtimes.v8 import isolates as isolates_
from findleaks.runtimes.v8.layout import Layout, Underivable, derive
from findleaks.runtimes.v8.scopes import Scope, scopes
from findleaks.runtimes.v8.values import Namer as Values
from findleaks.session import Session
from findleaks.unwind.frames import Unwinder
from findleaks.unwind.stacks import NamedFrame, Namer, without_parameters

HEAP = "napi_open_handle_scope"  # the Node-API function that opens scopes on the heap
# The opener of a scope if unwinding did not reach its frame.
UNREACHED = "a frame that could not be reached"


class FoundScopes(NamedTuple):
    """The result, and sentences about its limits. The heap is not read."""

    result: Scopes
    warnings: list[str]


def describe_scopes(session: Session) -> FoundScopes:
    """Return the handle scopes of all isolates."""
    warnings = list(session.target.warnings)
    found: list[Isolate] = []
    why = ""
    try:
        found = _isolates(session, derive(session.target), warnings)
    except Underivable as error:
        why = f"no handle scopes can be read: {error}"
    else:
        if not found:
            why = "no thread is in an isolate: V8 is loaded, but not running, or its thread-local storage cannot be read"
    return FoundScopes(Scopes(found, why or None), warnings)


def _isolates(session: Session, layout: Layout, warnings: list[str]) -> list[Isolate]:
    target, found = session.target, []
    unwinder = Unwinder(target)
    namer, values = Namer(target, unwinder), Values(target, session.engine)
    nodes = globals_.derive(target)
    if nodes is None:
        warnings.append("global handles are not counted: v8::internal::GlobalHandles::RecordStats has unexpected code")
    for one in isolates_.isolates(target, layout):
        session.report_progress("reading handles", 0.0)
        opened = scopes(target, session.engine, unwinder, layout, one)
        kept = globals_.read(target, nodes, one.address) if nodes is not None else None
        found.append(_isolate(one, values, [_scope(namer, scope) for scope in opened], kept, 8 * layout.handles))
        warnings += [problem for problem in (one.problem, kept.problem if kept is not None else "") if problem]
        on_stacks = sum(scope.thread is not None for scope in opened)
        if layout.counts and on_stacks != one.level and not one.problem:
            of = f"isolate {one.address:#x} has {one.level:,} open scopes, {on_stacks:,} were found"
            warnings.append(f"{of}: handles may be counted to a neighbour of the scope that owns them")
    return found


def _isolate(
    one: isolates_.Isolate, values: Values, opened: list[HandleScope], kept: Optional[globals_.Globals], block_bytes: int
) -> Isolate:
    return Isolate(
        one.address,
        [thread.tid for thread in one.threads],
        one.level,
        one.handles,
        blocks=len(one.blocks),
        bytes=len(one.blocks) * block_bytes,
        values=[HandleValue(held.value, held.handles, held.objects) for held in values.list_held(one.values)],
        scopes=opened,
        globals=None if kept is None else GlobalHandles(kept.handles, kept.weak, kept.blocks, kept.bytes, kept.problem or None),
        problem=one.problem or None,
    )


def _scope(namer: Namer, scope: Scope) -> HandleScope:
    opener = namer.name(scope.frame) if scope.frame is not None else None
    inside = [namer.name(frame) for frame in scope.inside]
    return HandleScope(
        scope.address or None,
        _label(scope, opener, inside) or None,
        opener.function or None if opener is not None else None,
        opener.module or None if opener is not None else None,
        scope.heap,
        scope.thread,
        scope.handles,
        inside=[frame.function or frame.label() for frame in inside],
        inner_functions=[InnerFunction(without_parameters(frame.function), frame.module) for frame in inside if frame.function],
    )


def _label(scope: Scope, opener: Optional[NamedFrame], inside: list[NamedFrame]) -> str:
    """Describe the frame that opened the scope; "" for handles that are older than all scopes."""
    if opener is None:
        return HEAP if scope.heap else UNREACHED if scope.thread is not None else ""
    if not opener.function and not opener.module:
        called = next((without_parameters(frame.function) for frame in inside if frame.function), "")
        return f"generated code that calls {called}" if called else f"generated code at {opener.label()}"
    # Parameters can be very long.
    return opener._replace(function=without_parameters(opener.function)).label()
