"""Findings of `verdict` about Go's heap and goroutines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.formatting import number, shortened, size
from findleaks.runtimes.base import Finding, Part
from findleaks.runtimes.go.memstats import MemStats
from findleaks.runtimes.user_threads import UserThreadGroup, own_frame
from findleaks.target.base import Target

_MANY, _MOST_GROUPS = 1000, 3  # goroutines of a group, and groups, that are reported
_LIBRARIES = ("runtime.", "internal/", "sync.", "time.", "net.", "syscall.", "os.", "io.", "bufio.", "context.")
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


def find_many_goroutines(groups: Sequence[UserThreadGroup]) -> Iterator[Finding]:
    """Yield a finding for each group of MANY goroutines that wait at the same place, at most
    three. `groups`: those with most goroutines first."""
    for group in groups[:_MOST_GROUPS]:
        count, frame, creator = len(group.threads), own_frame(group.frames, is_library), group.first.creator
        if count < _MANY or group.first.state != "waiting" or frame is None:
            return
        place = f" ({shortened(frame.place())})" if frame.line else ""
        title = f"{number(count)} goroutines wait in {shortened(frame.short_name())}{place}: {shortened(group.first.reason or 'unknown')}."
        made = f"They were created by {shortened(creator.short_name())} at {shortened(creator.place())}. " if creator is not None else ""
        minutes = (group.waiting or 0) // 60_000_000_000
        wait = f" The longest wait is {number(minutes)} min." if minutes else ""
        cause = f"{made}Their stacks take {size(group.stack_bytes)}.{wait}"
        facts: dict[str, object] = {
            "goroutines": count,
            "function": frame.function,
            "file": frame.file or None,
            "line": frame.line or None,
            "reason": group.first.reason or None,
            "creator": creator.function if creator is not None else None,
            "creator_file": creator.file if creator is not None else None,
            "creator_line": creator.line if creator is not None else None,
        }
        remedies = ("end goroutines that are not needed: close their channel, or cancel their context",)
        yield Finding("goroutines", group.stack_bytes, title, cause, remedies, ("stacks",), facts)
