"""Report a core file that was cut off, and what it lacks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from findleaks.formatting import number, printable, size, some
from findleaks.runtimes.finding import Finding
from findleaks.session import Session
from findleaks.target.base import Range, Target
from findleaks.target.ranges import intersection, merge_ranges, range_at, region_index

LEAST_PART = 0.1
"""The fraction of the writable memory that must be missing for a finding, unless stacks or
variables of modules are missing. Below this fraction, only a warning reports the missing memory."""

_REMEDIES = (
    "compare the size of a copied core with that of the original",
    "look for what cuts cores off where the process ran: a full disk, `ulimit -c`, or the limits in coredump.conf",
    "write the core again",
)


def find_truncation(session: Session) -> Iterator[Finding]:
    """Yield one finding if the core is cut off, and lacks stacks of threads, variables of modules,
    or a large part of the writable memory."""
    target = session.target
    if not target.truncated:
        return
    writable = merge_ranges(Range(region.start, region.end) for region in target.regions() if region.writable)
    missing, whole = _count_bytes(intersection(writable, target.unread)), _count_bytes(writable)
    threads, modules = _describe_threads(target), _list_modules(target)
    if not missing or not (threads or modules or missing >= LEAST_PART * whole):
        return
    title = f"The core is cut off: it lacks {size(missing)} of {size(whole)} of writable memory{threads}."
    variables = f"Variables of {some(modules)} are missing. " if modules else ""
    effect = "Blocks to which only the missing memory refers count as leaked."
    if not session.directory.allocators:
        effect = "No blocks can be listed, because the variables of the allocator are missing."
    facts: dict[str, object] = {"missing": missing, "writable": whole}
    yield Finding("truncated-core", missing, title, variables + effect, _REMEDIES, ("map",), facts)


def _count_bytes(ranges: Iterable[Range]) -> int:
    return sum(end - start for start, end in ranges)


def _describe_threads(target: Target) -> str:
    """Return a phrase about threads whose registers or stacks are missing; "" if there are none."""
    threads = target.threads()
    if not threads:
        return ", and the registers of all threads"
    lost = sum(1 for thread in threads if range_at(target.unread, thread.sp) is not None)
    stacks = "the stack of a thread" if lost == 1 else f"the stacks of {number(lost)} threads"
    return f", including {stacks}" if lost else ""


def _list_modules(target: Target) -> list[str]:
    """Return the names of the modules whose variables are missing, those with the most missing
    bytes first."""
    modules = target.modules()
    lacking: dict[str, int] = {}
    for start, end in target.unread:
        index = region_index(modules, start)
        if index >= 0 and modules[index].path:
            name = printable(os.path.basename(modules[index].path))
            lacking[name] = lacking.get(name, 0) + end - start
    return sorted(lacking, key=lambda name: -lacking[name])
