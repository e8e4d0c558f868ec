"""Findings of `verdict` about the Java heap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from findleaks.formatting import size
from findleaks.runtimes.base import Part, Type
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.garbage import GARBAGE_BYTES
from findleaks.target.base import Target

# Less unused memory is not reported: bytes, and 1 / _PART of the resident heap.
_LEAST, _PART = 64 << 20, 2


def find_unused_heap(target: Target, heap: Part, types: Sequence[Type], collector: str) -> Iterator[Finding]:
    """Yield one finding if live objects take less than half of a large resident Java heap."""
    counts = [target.resident(start, end) for start, end in heap.ranges]
    if not types or any(count is None for count in counts):
        return
    resident = sum(count or 0 for count in counts)
    live, garbage = sum(one.bytes for one in types), sum(one.own.get(GARBAGE_BYTES, 0) for one in types)
    unused = resident - live
    if unused < _LEAST or unused * _PART < resident:
        return
    title = f"Not a leak: the Java heap has {size(resident)} of resident memory, and live objects take {size(live)} of it."
    cause = f"Objects that were not collected yet take {size(min(garbage, unused))}; the rest is free memory that the JVM keeps."
    remedies = ["a smaller -Xmx or -XX:SoftMaxHeapSize, so that the collector runs earlier"]
    if collector == "G1":
        remedies.append("-XX:G1PeriodicGCInterval=MILLISECONDS, with which G1 returns memory of idle programs")
    facts: dict[str, object] = {"resident_bytes": resident, "live_bytes": live, GARBAGE_BYTES: garbage}
    yield Finding("unused-java-heap", unused, title, cause, tuple(remedies), ("runtime --only jvm",), facts, unused)
