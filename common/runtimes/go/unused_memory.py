"""Findings of `verdict` about memory of Go's heap that no live object uses: free memory that was
not returned to the kernel, garbage that was not collected yet, and free slots of spans that contain
a few objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import compress
from operator import mul
from typing import Optional

from findleaks.engine.terms import State
from findleaks.formatting import format_count, number, shorten, size, some
from findleaks.runtimes.base import Part, Type
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.garbage import GARBAGE_BYTES, GARBAGE_OBJECTS
from findleaks.runtimes.go.memstats import MemStats
from findleaks.runtimes.go.object_graph import GoGraph
from findleaks.runtimes.go.objects import HeapObjects
from findleaks.runtimes.go.spans import joined_ranges
from findleaks.target.base import Target
from findleaks.target.ranges import intersection

_LEAST, _PART_FREE = 8 << 20, 10  # bytes, and 1 / this of the heap, that are reported
# Live objects and stacks are at most 1 / _PART_LIVE of all objects and stacks, and objects at most
# 1 / _PART_USED of the spans in use.
_PART_LIVE, _PART_USED = 3, 4
_MOST_TYPES = 3  # types that a sentence names
_MOST_SAMPLED = 4096  # objects whose types are counted
_DEFAULT_PERCENT = 100  # GOGC if the program does not set it


def find_free_memory(target: Target, stats: Optional[MemStats], parts: Sequence[Part]) -> Iterator[Finding]:
    """Yield one finding, if Go's heap has much free memory that was not returned to the kernel."""
    if stats is None:
        return
    idle, released, mapped = stats.value("HeapIdle"), stats.value("HeapReleased"), stats.value("HeapSys")
    kept = idle - released
    if kept < _LEAST or kept * _PART_FREE < mapped - released:
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
    remedies = ["debug.FreeOSMemory(), which returns it at once"]
    remedies += ["GOMEMLIMIT, with which Go returns memory earlier near the limit"] if stats.has_limit else []
    facts: dict[str, object] = {"HeapIdle": idle, "HeapReleased": released, "HeapInuse": stats.value("HeapInuse")}
    yield Finding("go-free-memory", kept, title, cause, tuple(remedies), ("runtime --only go",), facts, resident)


def find_unused_memory(objects: HeapObjects, graph: GoGraph, types: Sequence[Type], stats: Optional[MemStats]) -> Iterator[Finding]:
    """Yield a finding about garbage, and one about free slots, if these are most of Go's heap.
    `types`: all objects by type."""
    yield from _find_garbage(objects, types, stats)
    yield from _find_free_slots(objects, graph)


def _find_garbage(objects: HeapObjects, types: Sequence[Type], stats: Optional[MemStats]) -> Iterator[Finding]:
    # With GOGC=100, a healthy program has up to as much garbage as live objects and stacks.
    live, garbage = sum(one.bytes for one in types), sum(one.own[GARBAGE_BYTES] for one in types)
    roots = live + (stats.value("StackInuse") if stats is not None else 0)
    if garbage < _LEAST or roots * _PART_LIVE > roots + garbage or _lacks_memory(objects):
        return
    count, resident = sum(one.own[GARBAGE_OBJECTS] for one in types), _count_resident(objects, garbage)
    title = f"Not a leak: {size(garbage)} in {format_count(count, 'object')} are garbage that Go's collector has not freed yet."
    percent, limit = (stats.percent, stats.limit) if stats is not None else (None, None)
    cause = f"Live objects take {size(live)}."
    remedies = ["debug.FreeOSMemory(), which collects garbage and returns the memory, after work that needs much memory"]
    if percent is not None:
        at = "" if limit is None else f", and GOMEMLIMIT is {size(limit) if limit else 'not set'}"
        cause += f" GOGC is {'off' if percent < 0 else percent}{at}."
        if percent < 0:
            cause += f" The collector runs only {'near this limit' if limit else 'if the program calls it'}."
            others = ", or a lower GOMEMLIMIT" if limit else "" if limit is None else " or GOMEMLIMIT"
            remedies = [f"set GOGC (debug.SetGCPercent){others}"]
        elif percent > _DEFAULT_PERCENT:
            cause += " The collector runs when the heap has grown by this percentage."
            remedies.insert(0, f"lower GOGC: its default is {_DEFAULT_PERCENT}")
    facts: dict[str, object] = {
        "garbage_objects": count,
        "garbage_bytes": garbage,
        "live_bytes": live,
        "gogc": percent,
        "gomemlimit": limit,
    }
    yield Finding("go-garbage", garbage, title, cause, tuple(remedies), ("runtime --only go",), facts, resident)


def _lacks_memory(objects: HeapObjects) -> bool:
    """Return whether memory is missing that may refer to objects. Live objects then look like
    garbage."""
    target = objects.target
    return target.truncated or not target.threads() or bool(intersection(joined_ranges(objects.spans), target.unread))


def _find_free_slots(objects: HeapObjects, graph: GoGraph) -> Iterator[Finding]:
    # After a collection, half of the slots of a healthy program may be free.
    spans, blocks = objects.spans, objects.blocks
    whole, used = sum(map(mul, spans.sizes, spans.slots)), blocks.totals(State.IN_USE).bytes
    free = whole - used
    if free < _LEAST or used * _PART_USED > whole:
        return
    slots = Counter[int]()
    for slot, count in zip(spans.sizes, spans.slots):
        slots[slot] += count
    taken = {one.size: one.blocks for one in blocks.by_size() if one.state == State.IN_USE}
    most = max(slots, key=lambda one: one * (slots[one] - taken.get(one, 0)))
    resident = _count_resident(objects, free)
    title = f"Not a leak: {size(free)} of Go's heap are free slots between objects. Go can only use them for objects of the same size."
    cause = f"Objects take {size(used)} of {size(whole)} in spans. Slots of {number(most)} B have the most free memory: "
    cause += f"{number(taken.get(most, 0))} of {number(slots[most])} slots contain objects."
    names = _name_objects(objects, graph, most)
    cause += f" These are {some(names, _MOST_TYPES)}." if names else ""
    remedies = (
        "copy objects that remain after a peak into new memory (one slice of values), so that Go can return the spans",
        "limit the number of objects that exist at the same time",
    )
    facts: dict[str, object] = {
        "free_bytes": free,
        "used_bytes": used,
        "slot_bytes": most,
        "slots": slots[most],
        "slots_in_use": taken.get(most, 0),
    }
    yield Finding("go-free-slots", free, title, cause, remedies, ("runtime --only go",), facts, resident)


def _count_resident(objects: HeapObjects, most: int) -> Optional[int]:
    """Return the resident bytes of all spans, but at most `most`; None if they are unknown."""
    counts = [objects.target.resident(start, end) for start, end in joined_ranges(objects.spans)]
    return None if any(count is None for count in counts) else min(sum(count or 0 for count in counts), most)


def _name_objects(objects: HeapObjects, graph: GoGraph, slot: int) -> list[str]:
    """Return the most frequent types of objects in slots of a size. If there are many objects, some
    of them are examined, and no numbers are given."""
    spans = objects.spans
    chosen = list(compress(range(len(spans)), (one == slot for one in spans.sizes)))
    step, counts, seen = max(len(chosen) // _MOST_SAMPLED, 1), Counter[str](), 0
    for at in chosen[::step]:
        start = spans.starts[at]
        first = objects.blocks.find(start)
        columns = objects.blocks.columns(first, first + spans.slots[at])
        for index, state in enumerate(columns.state, first):
            if state == State.IN_USE:
                counts[graph.type_of(index)] += 1
                seen += 1
        if seen >= _MOST_SAMPLED:
            break
    return [shorten(name) for name, _ in counts.most_common(_MOST_TYPES)]
