"""Build the profiles that `runtime -o` writes: the objects of managed heaps by root and type, or by
the stack that allocated them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Optional

from findleaks.audit.heap_roots import HeapRoots, list_partitions
from findleaks.audit.managed import package_of_type
from findleaks.commands.profiles import call_frame
from findleaks.engine.dominators import SHARED, SHARED_NAME
from findleaks.errors import UsageError
from findleaks.formatting import size as size_of
from findleaks.report.profile import BYTES, COUNT, Frame, Measure, Profile, Sample, frame_name
from findleaks.runtimes.base import Runtime, Site
from findleaks.runtimes.garbage import GARBAGE_BYTES, GARBAGE_OBJECTS
from findleaks.session import Session

NO_SITES = (
    "no allocation stacks were recorded; tracemalloc and NMT record them, and Go's memory profile does "
    "in programs that refer to runtime.MemProfile, such as those that import net/http/pprof"
)
GARBAGE_NAME = "garbage"

# The names and their order are those of Go's own heap profiles.
_IN_USE = Measure("inuse_objects", COUNT, "Objects"), Measure("inuse_space", BYTES, "Bytes")
_ALLOCATED = Measure("alloc_objects", COUNT, "Allocated objects"), Measure("alloc_space", BYTES, "Allocated bytes")


def runtime_profile(session: Session, runtimes: Sequence[Runtime], by: str) -> Profile:
    """Return the profile. `by`: "type", "package" (of the type), or "site". Raises UsageError if no
    runtime recorded sites."""
    if by == "site":
        return _of_sites(session, [site for one in runtimes for site in one.sites()])
    group = package_of_type if by == "package" else str
    heaps = {one.runtime: one for one in list_partitions(session)}
    samples = [sample for one in runtimes for sample in _of_runtime(one, heaps.get(one.name), group)]
    return Profile(f"Objects: {session.target.description}", _IN_USE, samples)


def _of_sites(session: Session, sites: Sequence[Site]) -> Profile:
    if not sites:
        raise UsageError(NO_SITES)
    allocated = all(site.allocated is not None for site in sites)
    samples = []
    for site in sites:
        frames = [call_frame(frame) for frame in site.calls] or [Frame(frame_name(frame)) for frame in site.frames]
        before = tuple(site.allocated) if allocated and site.allocated is not None else ()
        samples.append(Sample(tuple(reversed(frames)), (*before, site.blocks, site.bytes)))
    rate = max(site.rate for site in sites)
    notes = [estimate_note(rate)] if rate > 1 else []
    measures = (*_ALLOCATED, *_IN_USE) if allocated else _IN_USE
    title = f"Allocations: {session.target.description}"
    return Profile(title, measures, samples, rate=rate, default=len(measures) - 1, notes=notes)


def estimate_note(rate: int) -> str:
    """Return a sentence about figures that are computed from samples."""
    return f"estimates: the recorder takes one sample every {size_of(rate)} on average"


def _of_runtime(runtime: Runtime, heap: Optional[HeapRoots], group: Callable[[str], str]) -> Iterator[Sample]:
    """Yield the live objects by root and type, or by type if roots have no names; then garbage."""
    top = Frame(frame_name(f"{runtime.name}'s heap"))
    if heap is not None:
        roots = [(root.name, root.node) for root in heap.roots]
        for name, node in [*roots, (SHARED_NAME, SHARED)]:
            for one in heap.types_of(node, len(heap.graph.blocks)) if node is not None else ():
                yield Sample((top, Frame(frame_name(name)), Frame(frame_name(group(one.name)))), tuple(one.totals))
    for kind in runtime.types():
        stack = Frame(frame_name(group(kind.name)))
        if heap is None:
            yield Sample((top, stack), (kind.objects, kind.bytes))
        if kind.own.get(GARBAGE_OBJECTS):
            yield Sample((top, Frame(GARBAGE_NAME), stack), (kind.own[GARBAGE_OBJECTS], kind.own[GARBAGE_BYTES]))
