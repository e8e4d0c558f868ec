"""Compare PartitionAlloc's counters and lists of spans with the spans themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.partitionalloc.layout import SUPER_PAGE
from findleaks.allocators.partitionalloc.spans import Partition
from findleaks.allocators.partitionalloc.tallies import Tally

LISTS = ("active", "empty", "decommitted")  # the lists of a bucket, in order of their heads
MOST_SPANS = 1 << 20  # of a list


def check_partition(memory: Memory, one: Partition, tallies: Mapping[int, Tally]) -> Iterator[Optional[Problem]]:
    """Yield the problems of a partition."""
    yield from _check_counters(one, tallies)
    yield None
    yield from _check_lists(memory, one)


def _check_counters(one: Partition, tallies: Mapping[int, Tally]) -> Iterator[Problem]:
    root = one.root
    used = sum(span.allocated * span.slot_size for span in one.spans) + sum(large.slot_size for large in root.direct_maps)
    measured = {
        "total_size_of_allocated_bytes": used,
        "total_size_of_super_pages": sum(SUPER_PAGE for _ in root.super_pages()),
        "total_size_of_direct_mapped_pages": sum(large.end - large.start for large in root.direct_maps),
    }
    if one.has_counters:
        measured["total_count_of_brp_quarantined_slots"] = sum(tally.quarantined for tally in tallies.values())
    for name, value in measured.items():
        if value != root.counters[name]:
            what = f"PartitionAlloc's partition at {root.address:#x} has {root.counters[name]:,} as {name}, but its spans have {value:,}"
            yield Problem(root.address + root.layout.counters, what)


def _check_lists(memory: Memory, one: Partition) -> Iterator[Optional[Problem]]:
    """Check that each span of a bucket's lists belongs to the bucket, and that no span is in two
    lists."""
    buckets = {span.entry: span.bucket for span in one.spans}
    seen: Counter[int] = Counter()
    for number in range(len(one.root.sizes)):
        place = one.root.first_bucket + number * one.root.layout.bucket.stride
        for name, head in zip(LISTS, memory.words(place, len(LISTS)) or ()):
            span, count = head, 0
            while span and count < MOST_SPANS:
                if buckets.get(span) != number:
                    # If a bucket has no active spans, its list of active spans contains a sentinel.
                    if not count and name == LISTS[0]:
                        break
                    yield Problem(
                        place, f"PartitionAlloc's list of {name} spans of {one.root.sizes[number][0]} bytes has a wrong span {span:#x}"
                    )
                    break
                seen[span] += 1
                if seen[span] > 1:
                    yield Problem(span, f"PartitionAlloc's span at {span:#x} is in two lists, or twice in one")
                    break
                span, count = memory.word(span + 8) or 0, count + 1
    yield None
