"""Match recorded mappings with the mappings that the process has now, and sum them by stack."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Optional

from findleaks.arg_types import SizeRange
from findleaks.injection.stub.stack_names import StackNames
from findleaks.session import Session
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges, subtract
from findleaks.target.runs import Runs
from findleaks.tracking.record_table import LIVE, UNPLACED, Record, Sampling
from findleaks.tracking.sites import Recorded, TrackedSite, order_sites


def find_mapping_sites(
    session: Session, recorded: Recorded, sampling: Sampling, sizes: Optional[SizeRange], names: StackNames
) -> list[TrackedSite]:
    """Return the sites of recorded mappings. If a mapping was partly unmapped, only the bytes that
    are still mapped count. A mapping is lost if it is one of the session's leaked mappings. Records
    of 0 bytes are left out: sbrk(0) returns the end of the heap, and maps nothing."""
    leaked = Runs.of(session.directory.mappings.ranges)
    found: dict[int, TrackedSite] = {}
    records = [record for record in recorded.records if record.size]
    for record, left in zip(records, _what_is_left(session, records)):
        if sizes is not None and not sizes.low <= record.size <= sizes.high:
            continue
        site = found.setdefault(record.stack, TrackedSite())
        weight, held = sampling.weight(record), sum(end - start for start, end in left)
        site.allocated.add(weight, record.size)
        site.records += 1
        if not held:
            site.freed.add(weight, record.size)
            continue
        is_lost = any(leaked.bytes(*part) for part in left)
        (site.lost if is_lost else site.held).add(weight, held)
        if is_lost:
            site.examples.append(left[0].start)
    return order_sites(found, recorded, names)


def _what_is_left(session: Session, records: Sequence[Record]) -> list[list[Range]]:
    """Return the parts of each recorded mapping that are still mapped, without parts that a later
    record maps again.

    munmap of its first page marks a record as freed, even if more of the mapping is left:
    allocators unmap the first pages to align a mapping. If the first page is now mapped again, the
    whole mapping was unmapped in between."""
    page = session.target.arch.page
    mapped = Runs.of(merge_ranges(Range(region.start, region.end) for region in session.target.regions()))
    later: list[Range] = []  # disjoint ranges, ascending
    found: list[list[Range]] = []
    for record in reversed(records):
        whole = Range(record.address, record.address + max(record.size + page - 1 & -page, page))
        first, last = bisect_left(later, (whole.start,)), bisect_left(later, (whole.end,))
        first -= first > 0 and later[first - 1].end > whole.start
        near = later[first:last]
        left = [part for own in subtract([whole], near) for part in mapped.within(*own)]
        was_freed = record.state not in (LIVE, UNPLACED)
        found.append([] if was_freed and left and left[0].start == whole.start else left)
        later[first:last] = merge_ranges([*near, whole])
    return found[::-1]
