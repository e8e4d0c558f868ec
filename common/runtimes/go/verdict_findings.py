"""Findings of `verdict` about Go's heap and goroutines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Optional

from findleaks.engine.contract import Graph
from findleaks.engine.terms import Totals
from findleaks.formatting import number, shortened, size, some
from findleaks.runtimes.base import Finding, Part, Site
from findleaks.runtimes.go.memstats import MemStats
from findleaks.runtimes.go.objects import HeapObjects, Retained
from findleaks.runtimes.object_graph import LIVE
from findleaks.runtimes.user_threads import UserThreadGroup, own_frame
from findleaks.target.base import Target

_MANY, _MOST_GROUPS = 1000, 3  # goroutines of a group, and groups, that are reported
_SOME, _PART = 100, 16  # goroutines that are reported if their stacks take 1 / _PART of the heap
_LEAST_MAP, _SPARSE = 1 << 20, 16  # bytes of a map, and slots for each entry, that are reported
_MOST_TYPES, _MOST_CALLERS = 3, 2  # types and callers that a sentence names
_LIBRARIES = ("runtime.", "internal/", "sync.", "time.", "net.", "syscall.", "os.", "io.", "bufio.", "context.")
_PART_ALLOCATED = 4  # a site that allocated 1 / this of the live objects is named
_LEAST_FREE, _PART_FREE = 8 << 20, 10  # bytes, and 1 / this of the heap, that are reported


def find_free_memory(target: Target, stats: Optional[MemStats], parts: Sequence[Part]) -> Iterator[Finding]:
    """Yield one finding, if Go's heap has much free memory that was not returned to the kernel."""
    if stats is None:
        return
    idle, released, mapped = stats.value("HeapIdle"), stats.value("HeapReleased"), stats.value("HeapSys")
    kept = idle - released
    if kept < _LEAST_FREE or kept * _PART_FREE < mapped - released:
        return
    free = [part for whole in parts for part in whole.parts if part.name == "free pages"]
    counts = [target.resident(start, end) for part in free for start, end in part.ranges]
    present = sum(count for count in counts if count is not None)
    resident = None if any(count is None for count in counts) else min(present, kept)
    title = f"Not a leak: Go keeps {size(kept)} of free memory that it has not returned to the kernel."
    rate = "" if stats.percent is None else f" GOGC is {'off' if stats.percent < 0 else stats.percent},"
    limit = "" if stats.limit is None else f" GOMEMLIMIT is {size(stats.limit) if stats.limit else 'not set'}."
    cause = f"Of {size(idle)} of idle spans, {size(released)} are returned.{rate}{limit}".rstrip(",")
    cause = cause if cause.endswith(".") else f"{cause}."
    remedies = ("debug.FreeOSMemory(), which returns it at once", "GOMEMLIMIT, with which Go returns memory earlier near the limit")
    facts: dict[str, object] = {"HeapIdle": idle, "HeapReleased": released, "HeapInuse": stats.value("HeapInuse")}
    yield Finding("go-free-memory", kept, title, cause, remedies, ("runtime --only go",), facts, resident)


def is_library(function: str) -> bool:
    """Whether a function belongs to the parts of the standard library in which goroutines wait."""
    return function.startswith(_LIBRARIES)


def large_groups(groups: Sequence[UserThreadGroup], heap: int) -> list[UserThreadGroup]:
    """Return the groups that are reported, at most three. Such a group has many goroutines that
    wait at the same place. `groups`: those with the most goroutines first. `heap`: bytes of Go's
    heap in use."""

    def is_large(group: UserThreadGroup) -> bool:
        count = len(group.threads)
        return count >= _MANY or (count >= _SOME and group.stack_bytes * _PART >= heap)

    return [group for group in groups[:_MOST_GROUPS] if is_large(group) and group.first.state == "waiting" and group.frames]


def describe_goroutines(group: UserThreadGroup, retained: Optional[Retained]) -> Finding:
    """Return the finding about a group. `retained`: what is reachable only from these
    goroutines."""
    count, frame, creator = len(group.threads), own_frame(group.frames, is_library), group.first.creator
    function = frame.short_name() if frame is not None else ""
    place = f" ({shortened(frame.place())})" if frame is not None and frame.line else ""
    title = f"{number(count)} goroutines wait in {shortened(function)}{place}: {shortened(group.first.reason or 'unknown')}."
    held = retained.totals if retained is not None else Totals(0, 0)
    cause = f"They were created by {shortened(creator.short_name())} at {shortened(creator.place())}. " if creator is not None else ""
    cause += f"Their stacks take {size(group.stack_bytes)}."
    if retained is not None and held.bytes:
        types = [f"{number(one.blocks)} {shortened(name)} ({size(one.bytes)})" for name, one in retained.types[:_MOST_TYPES]]
        cause += f" Only they refer to {size(held.bytes)} in {number(held.blocks)} objects: {some(types, _MOST_TYPES)}."
    minutes = (group.waiting or 0) // 60_000_000_000
    cause += f" The longest wait is {number(minutes)} min." if minutes else ""
    facts: dict[str, object] = {
        "goroutines": count,
        "function": frame.function if frame is not None else None,
        "file": (frame.file or None) if frame is not None else None,
        "line": (frame.line or None) if frame is not None else None,
        "reason": group.first.reason or None,
        "creator": creator.function if creator is not None else None,
        "creator_file": creator.file if creator is not None else None,
        "creator_line": creator.line if creator is not None else None,
        "stack_bytes": group.stack_bytes,
        "retained_objects": held.blocks if retained is not None else None,
        "retained_bytes": held.bytes if retained is not None else None,
    }
    remedies = ("end goroutines that are not needed: close their channel, or cancel their context",)
    return Finding("goroutines", group.stack_bytes + held.bytes, title, cause, remedies, ("stacks", "runtime --only go"), facts)


def find_sparse_maps(target: Target, objects: HeapObjects, graph: Graph, name: Callable[[int], str]) -> Iterator[Finding]:
    """Yield a finding for each live map, at most three, that takes much memory for few entries.
    `name` returns the name of the variable at an address: "variable main.conns"."""
    sparse = [one for one in objects.large_maps() if one.bytes >= _LEAST_MAP and one.entries * _SPARSE <= one.slots]
    live = [one for one in sparse if graph.kind(objects.blocks.find(one.address)) in LIVE]
    for one in sorted(live, key=lambda one: -one.bytes)[:_MOST_GROUPS]:
        symbol = target.symbolize(one.variable) if one.variable else None
        kind = shortened(objects.title_of(one)) or "map"
        whose = f"at {one.address:#x}"
        if one.variable:
            whose = f"of the {shortened(name(one.variable), 120)}"
        entries = "1 entry" if one.entries == 1 else f"{number(one.entries)} entries"
        title = f"A {kind} {whose} takes {size(one.bytes)} for {entries}: it has {number(one.slots)} slots."
        facts: dict[str, object] = {
            "map": hex(one.address),
            "type": objects.title_of(one) or None,
            "variable": hex(one.variable) if one.variable else None,
            "name": symbol.name if symbol is not None else None,
            "entries": one.entries,
            "slots": one.slots,
        }
        remedies = ("replace the map by a new one, such as maps.Clone returns: delete() and clear() keep its memory",)
        cause = "It had more entries once: a map of Go never shrinks."
        yield Finding("go-map", one.bytes, title, cause, remedies, (f"path {one.address:#x}", "runtime --only go"), facts)


def add_site(finding: Finding, sites: Sequence[Site]) -> Finding:
    """Return a finding about live objects with the stack that allocated most of them, if it is
    known. `sites`: those with most bytes in use first."""
    if not sites or sites[0].bytes * _PART_ALLOCATED < finding.bytes:
        return finding
    callers = [shortened(frame, 120) for frame in sites[0].frames[:_MOST_CALLERS]]
    about = "About " if sites[0].rate > 1 else ""
    cause = f"{finding.cause} {about}{size(sites[0].bytes)} of live objects were allocated by {' < '.join(callers)}."
    facts = {**finding.facts, "site": {"bytes": sites[0].bytes, "stack": list(sites[0].frames)}}
    return replace(finding, cause=cause, facts=facts, commands=(*finding.commands, "runtime --only go --by site"))
