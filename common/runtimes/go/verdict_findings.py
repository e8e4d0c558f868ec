"""Findings of `verdict` about Go's heap."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.dominators import root_node
from findleaks.engine.terms import Totals
from findleaks.formatting import format_amount, format_count, number, shorten, size, some
from findleaks.runtimes.absent_memory import find_resident_bytes
from findleaks.runtimes.base import Site, Type, UserThread
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.go.goroutines import CLEANUP_LOOP, FINALIZER_LOOPS
from findleaks.runtimes.go.maps import HEAD, GoMap
from findleaks.runtimes.go.object_graph import GoGraph
from findleaks.runtimes.go.objects import HeapObjects
from findleaks.runtimes.go.packages import find_own_frame, is_library
from findleaks.runtimes.go.root_groups import PROCESSORS, QUEUE
from findleaks.runtimes.retained_findings import find_retainer
from findleaks.target.base import Target

_MOST_MAPS = 3  # maps that are reported
_LEAST_MAP, _SPARSE = 1 << 20, 16  # bytes of a map, and slots for each entry, that are reported
_MOST_TYPES, _MOST_CALLERS = 3, 2  # types and callers that a sentence names
TIMERS = ("[]runtime.timerWhen", "[]*runtime.timer", "runtime.p", "[]*runtime.p")
"""Types of the objects that refer to timers: a processor's list of timers (since Go 1.23, and in
older versions), a processor, and the array of all processors."""

# The function of a timer that ends a context has a name that begins with this:
# context.WithDeadlineCause.func2, or in Go up to 1.20 context.WithDeadline.func2.
_DEADLINE = "func context.WithDeadline"

_POOL = "sync.poolLocal"
# Remedies. Each key is a part of the path to live objects: a field of a type, or the package of a
# variable or of a function that uses the variable. Sources: Go 1.18 to 1.26,
# src/context/context.go (cancelCtx), src/runtime/cgo/handle.go (handles), src/runtime/runtime2.go
# (g), src/sync/pool.go (poolLocal).
_REMEDIES = {
    "context.cancelCtx.children": "call the cancel function of each context: a context refers to its children until they are cancelled",
    _DEADLINE: "call the cancel function of each context with a timeout: until this call, the timer of the context refers to it",
    _POOL: "do not put buffers into a sync.Pool that have become large: it keeps them until two collections have passed",
    "runtime.g._defer": "do not defer in a loop: deferred calls run, and are freed, when their function returns",
    "runtime/cgo.": "call Delete for each cgo.Handle that C no longer needs",
}
_OF_RUNTIME = re.compile(r"variables? (?:at \S+ \(used in )?runtime\.")  # a root of the runtime
_LEAST_HELD = 1 << 20  # bytes of live objects for a finding about what retains them
_MANY_QUEUED = 1000  # finalizers that have not run, although the goroutine that runs them waits
_PART_ALLOCATED = 4  # a site that allocated 1 / this of the live objects is named
_PART_CALLED = 16  # a function is named if its closures are 1 / this of the retained objects


def find_sparse_maps(target: Target, objects: HeapObjects, graph: GoGraph) -> Iterator[Finding]:
    """Yield a finding for each live map, at most three, that takes much memory for few entries."""
    sparse = [one for one in objects.large_maps() if one.bytes >= _LEAST_MAP and one.entries * _SPARSE <= one.slots]
    live = [one for one in sparse if graph.is_live(objects.blocks.find(one.contents))]
    for one in sorted(live, key=lambda one: -one.bytes)[:_MOST_MAPS]:
        symbol = target.symbolize(one.variable) if one.variable else None
        kind = shorten(objects.title_of(one)) or "map"
        stack = graph.describe_stack(one.address)
        whose = f"of the {stack}" if stack else f"at {one.address:#x}"
        resident = _find_resident_bytes(one, graph)
        if one.variable:
            whose = f"of the {shorten(graph.names.name(one.variable), 120)}"
        entries = "1 entry" if one.entries == 1 else f"{number(one.entries)} entries"
        title = f"A {kind} {whose} takes {format_amount(one.bytes, resident)} for {entries}: it has {number(one.slots)} slots."
        facts: dict[str, object] = {
            "map": hex(one.address),
            "type": objects.title_of(one) or None,
            "variable": hex(one.variable) if one.variable else None,
            "name": symbol.name if symbol is not None else None,
            "stack": stack or None,
            "entries": one.entries,
            "slots": one.slots,
        }
        remedies = ("replace the map by a new one, such as maps.Clone returns: delete() and clear() keep its memory",)
        cause = "It had more entries once, or was created for more: a map of Go never shrinks."
        commands = (f"path {one.contents if stack else one.address:#x}", "runtime --only go")
        yield Finding("go-map", one.bytes, title, cause, remedies, commands, facts, resident)


def _find_resident_bytes(one: GoMap, graph: GoGraph) -> Optional[int]:
    """Return the resident bytes of a map; None if nearly all are resident. Up to 1.23, all buckets
    are one array."""
    words = Memory(graph.target).words(one.address, HEAD // 8) if graph.absent else ()
    absent = sum(graph.absent.get(graph.blocks.find(word), 0) for word in words or ())
    return max(one.bytes - absent, 0) if absent else None


def add_site(finding: Finding, sites: Sequence[Site]) -> Finding:
    """Return a finding about live objects with the stack that allocated most of them, if it is
    known. `sites`: those with most bytes in use first."""
    if not sites or sites[0].bytes * _PART_ALLOCATED < finding.bytes:
        return finding
    callers = [shorten(frame, 120) for frame in _find_callers(sites[0])]
    about = "About " if sites[0].rate > 1 else ""
    cause = f"{finding.cause} {about}{size(sites[0].bytes)} of live objects were allocated by {' < '.join(callers)}."
    facts = {**finding.facts, "site": {"bytes": sites[0].bytes, "stack": list(sites[0].frames)}}
    return replace(finding, cause=cause, facts=facts, commands=(*finding.commands, "runtime --only go --by site"))


def _find_callers(site: Site) -> list[str]:
    """Return the function that allocated, and the innermost functions outside of the standard
    library. Functions between them are left out."""
    own = next((at for at, frame in enumerate(site.calls) if not is_library(frame.function)), 0)
    callers = list(site.frames[own : own + _MOST_CALLERS])
    return [site.frames[0], *(["…"] if own > 1 else []), *callers] if own else callers


def add_remedy(finding: Finding) -> Finding:
    """Return a finding about live objects, with the remedies for the path to them, if any."""
    path = f"{finding.facts.get('root')} {finding.facts.get('path')}"
    return replace(finding, remedies=(*finding.remedies, *(remedy for part, remedy in _REMEDIES.items() if part in path)))


def find_small_retainer(graph: GoGraph, runtime: str, types: Sequence[Type], known: Sequence[Finding]) -> Iterator[Finding]:
    """Yield a finding if one object retains most live objects, although they are few. Pools and
    what the runtime itself retains are left out. See find_retainer."""
    for one in find_retainer(graph, runtime, types, known, _LEAST_HELD):
        path = f"{one.facts.get('root')} {one.facts.get('path')}"
        # In a small program, most objects may belong to a pool or to the runtime.
        is_other = not (_POOL in path or _OF_RUNTIME.search(path)) and 2 * one.weight >= _LEAST_HELD
        if is_other or any(part in path for part in _REMEDIES if part != _POOL):
            yield one


def find_timers(graph: GoGraph, live: int) -> Iterator[Finding]:
    """Yield a finding if timers retain at least half of the bytes of live objects (`live`)."""
    for held in retained_by(graph, PROCESSORS, live):
        title = f"In use, not leaked: timers that have not fired retain {held.amount}."
        cause = f"These are timers of time.AfterFunc, NewTimer and NewTicker. Most by type: {held.types}."
        name, called = max(((title, one) for title, one in held.rows if title.startswith("func ")), key=_blocks, default=("", None))
        if called is not None and called.blocks * _PART_CALLED >= held.totals.blocks:
            cause += f" {number(called.blocks)} of the timers call {shorten(name.removeprefix('func '))}."
        remedies: tuple[str, ...] = ("stop timers and tickers that are no longer needed: Timer.Stop, Ticker.Stop",)
        contexts = sum(one.blocks for title, one in held.rows if title.startswith(_DEADLINE))
        if contexts and 2 * contexts >= held.rows[0][1].blocks:
            remedies = ("call the cancel function of each context with a timeout", *remedies)
        yield Finding("go-timers", held.totals.bytes, title, cause, remedies, ("roots",), held.facts)


def _blocks(row: tuple[str, Totals]) -> int:
    return row[1].blocks


def find_queued_finalizers(graph: GoGraph, live: int, threads: Sequence[UserThread], objects: HeapObjects) -> Iterator[Finding]:
    """Yield a finding if finalizers and cleanups that have not run retain at least half of the
    bytes of live objects (`live`), or if there are many and a goroutine that runs them waits: small
    objects may refer to much memory of C code. `threads`: all goroutines."""
    shared, apart = objects.queued, objects.queued_cleanups
    finalizers = sum(bool(one.object) for one in shared)
    cleanups = len(shared) - finalizers + len(apart)
    what = " and ".join(name for name, count in (("finalizers", finalizers), ("cleanups", cleanups)) if count)
    loops: tuple[str, ...]
    if len(apart) > len(shared):
        loops, who = (CLEANUP_LOOP,), "A few goroutines run all cleanups, and each runs one after the other. One of them"
    else:
        run = "finalizers" if len(shared) == finalizers else "finalizers and cleanups"
        loops, who = FINALIZER_LOOPS, f"One goroutine runs all {run}, one after the other. It"
    running = [one for one in threads if any(frame.function in loops for frame in one.frames)]
    one = next((one for one in running if not one.is_internal), next(iter(running), None))
    frame = find_own_frame(one.frames) if one is not None else None
    if frame is not None and is_library(frame.function):
        frame = None
    waits = one is not None and frame is not None and bool(one.reason) and finalizers + cleanups >= _MANY_QUEUED
    for held in retained_by(graph, QUEUE, live, waits):
        title = f"In use, not leaked: {what} that have not run yet retain {held.amount}."
        cause = f"Most by type: {held.types}."
        remedies: tuple[str, ...] = (f"release what objects need with a method such as Close, not with {what}",)
        facts = {**held.facts, "function": None, "reason": None}
        if one is not None and frame is not None:
            state = one.reason or one.state
            place = f" ({shorten(frame.place())})" if frame.line else ""
            cause = f"{who} is in {shorten(frame.short_name())}{place}: {state}. {cause}"
            remedies = (f"keep {what} short: start a goroutine for work that may wait", *remedies)
            facts.update(function=frame.function, reason=state)
        yield Finding("go-finalizers", held.totals.bytes, title, cause, remedies, ("stacks", "roots"), facts)


class Held(NamedTuple):
    """The objects that a root retains, as text and as facts for JSON. `rows`: their types, the type
    with the most bytes first. `members(most)` returns the indices of at most `most` objects."""

    totals: Totals
    rows: Sequence[tuple[str, Totals]]
    amount: str
    types: str
    facts: dict[str, object]
    members: Callable[[int], Sequence[int]]


def retained_by(graph: GoGraph, name: str, live: int, any_amount: bool = False) -> Iterator[Held]:
    """Yield what the root with this name retains, if that is at least half of the bytes of live
    objects (`live`), or if `any_amount` is true."""
    found = graph.root_tree if live >= _LEAST_HELD or any_amount else None
    if found is None:
        return
    for at, (group, totals) in enumerate(zip(found.groups, found.totals)):
        if group.name != name or (2 * totals.bytes < live and not any_amount):
            continue
        rows = graph.types_below(found.tree, root_node(at))
        types = rows[:_MOST_TYPES]
        largest = [f"{number(one.blocks)} {shorten(title)} ({size(one.bytes)})" for title, one in types]
        facts: dict[str, object] = {
            "root": group.name,
            "retained_objects": totals.blocks,
            "retained_bytes": totals.bytes,
            "types": [{"type": title, "objects": one.blocks, "bytes": one.bytes} for title, one in types],
        }
        resident = find_resident_bytes(found.tree, root_node(at), totals.bytes, graph.absent)
        amount = f"{format_amount(totals.bytes, resident)} in {format_count(totals.blocks, 'object')} of Go"
        yield Held(totals, rows, amount, some(largest, _MOST_TYPES), facts, partial(found.tree.members, root_node(at), 0))
