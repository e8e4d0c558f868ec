"""Read the slot spans of a partition from the metadata of its super pages."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Optional

from findleaks.allocators.base import Problem, add_first_problems
from findleaks.allocators.memory import Memory
from findleaks.allocators.partitionalloc import layout as at
from findleaks.allocators.partitionalloc.engine import Links
from findleaks.allocators.partitionalloc.layout import ENTRIES, ENTRY, METADATA, PAGE, PARTITION_PAGE, SUPER_PAGE
from findleaks.allocators.partitionalloc.roots import Root
from findleaks.target.base import Range

PAGES = PARTITION_PAGE // PAGE  # system pages of a partition page
SAMPLE = 64  # links that are read to find out how links are encoded


class Span(NamedTuple):
    """A slot span [start, end). `entry` is the address of its metadata, `bucket` the number of its
    bucket, `slots` the number of slots that were ever used, and `head` its first free slot. A
    decommitted span has no slots. `raw_size` is the size of the only slot, or 0 if it is not
    recorded."""

    start: int
    end: int
    entry: int
    bucket: int
    slot_size: int
    slots: int
    allocated: int
    unprovisioned: int
    head: int
    raw_size: int

    @property
    def is_decommitted(self) -> bool:
        return not self.slots


class Partition(NamedTuple):
    """A partition: its root, its spans in ascending order, the start addresses of the spans, and
    the encoding of links between free slots."""

    root: Root
    spans: Sequence[Span]
    starts: Sequence[int]
    links: Links

    @property
    def has_counters(self) -> bool:
        """Whether the reference counters of slots can be read. They cannot be read up to Chromium
        124: in these versions, links have no shadow, and the counter of a slot is before the
        slot."""
        return self.root.counted and self.links.has_shadow

    def between(self, start: int, end: int) -> Sequence[Span]:
        """Return the spans that start in [start, end)."""
        return self.spans[bisect_left(self.starts, start) : bisect_left(self.starts, end)]


def read_partition(memory: Memory, root: Root, width: int, problems: list[Problem]) -> Partition:
    """Read all spans. `width` is the number of bits of a count of slots."""
    found: list[Problem] = []
    spans = [span for page in sorted(root.super_pages()) for span in _read_super_page(memory, root, page, width, found)]
    add_first_problems(problems, found, "such problems of super pages")
    return Partition(root, spans, [span.start for span in spans], _find_links(memory, root, spans))


class Spans(NamedTuple):
    """All partitions, read with counts of slots of `width` bits. `error` is the difference in bytes
    between the allocated slots that were found and the counters of the partitions."""

    partitions: Sequence[Partition]
    width: int
    problems: Sequence[Problem]
    error: int


def read_spans(memory: Memory, roots: Sequence[Root]) -> Optional[Spans]:
    """Read all partitions with the width of counts that fits, WIDE or NARROW. Return None if
    neither fits. With the correct width, `error` is 0, or small if a thread is inside
    PartitionAlloc."""
    tried = []
    for width in (at.WIDE, at.NARROW):
        one = _read_all(memory, roots, width)
        if not one.error and not one.problems:
            return one
        tried.append(one)
    best = min(tried, key=lambda one: one.error + SUPER_PAGE * len(one.problems))
    counted = sum(root.counters["total_size_of_allocated_bytes"] for root in roots)
    return best if best.error <= counted // 8 + SUPER_PAGE else None


def _read_all(memory: Memory, roots: Sequence[Root], width: int) -> Spans:
    problems: list[Problem] = []
    error, partitions = 0, [read_partition(memory, root, width, problems) for root in roots]
    for one in partitions:
        used = sum(span.allocated * span.slot_size for span in one.spans) + sum(large.slot_size for large in one.root.direct_maps)
        error += abs(used - one.root.counters["total_size_of_allocated_bytes"])
    return Spans(partitions, width, problems, error)


def _read_super_page(memory: Memory, root: Root, page: int, width: int, problems: list[Problem]) -> Iterator[Span]:
    """Yield the spans of a super page. Pages without slots may be anywhere: before the first span
    (bitmaps of Chromium 121), between spans, and after the last."""
    place = page + root.metadata
    data = memory.read(place, METADATA)
    if not data:
        what = f"the metadata of PartitionAlloc's super page {page:#x} at {place:#x} cannot be read: its blocks are not read"
        problems.append(Problem(place, what, False))
        return
    entries = list(struct.iter_unpack(at.SPAN_FORMAT, data))
    number = 1
    while number < ENTRIES - 1:
        flags = entries[number][5]
        if flags & at.VALID:
            raw = entries[number + 1][0]
            span = _make_span(root, page, place + number * ENTRY, entries[number], raw, width)
            if span is None:
                what = f"PartitionAlloc's metadata at {place + number * ENTRY:#x} is damaged: the slots of a partition page are not read"
                problems.append(Problem(place + number * ENTRY, what, damaged=Range(place + number * ENTRY, place + (number + 1) * ENTRY)))
            else:
                yield span
            number += 1 if span is None else -(-root.sizes[span.bucket][1] // PAGES)
        else:
            number += 1


def _make_span(root: Root, page: int, entry: int, words: tuple[int, ...], raw: int, width: int) -> Optional[Span]:
    """Return the span with this metadata, or None if it is damaged."""
    head, _, bucket, packed, _, flags, _ = words
    number, inside = divmod(bucket - root.first_bucket, root.layout.bucket.stride)
    if inside or not 0 <= number < len(root.sizes) or flags & at.PLACE:
        return None
    size, pages = root.sizes[number]
    start = page + entry % METADATA // ENTRY * PARTITION_PAGE
    end = start + pages * PAGE
    bits = at.unpack_bits(packed, width)
    most = (end - start) // size if at.SMALLEST <= size <= at.LARGEST and size % at.SMALLEST == 0 else 0
    if not most or end > page + SUPER_PAGE - PARTITION_PAGE or bits.allocated + bits.unprovisioned > most:
        return None
    slots = most - bits.unprovisioned if bits.allocated or head else 0
    if head and not start <= head < start + slots * size:
        return None
    raw_size = raw if bits.has_raw_size and bits.allocated and 0 < raw <= size else 0
    return Span(start, end, entry, number, size, slots, bits.allocated, bits.unprovisioned, head, raw_size)


def _find_links(memory: Memory, root: Root, spans: Sequence[Span]) -> Links:
    """Return how links are encoded. This is determined from the first link of some free lists.
    Links are addresses up to Chromium 127, and offsets in the pool in later versions."""
    sample = (span for span in spans if span.head and span.slots - span.allocated > 1)
    for span in islice(sample, SAMPLE):
        first, second = memory.words(span.head, 2) or (0, 0)
        value = int.from_bytes(first.to_bytes(8, "little"), "big")
        slot = span.head & -SUPER_PAGE | value % SUPER_PAGE
        base = slot - value
        inside = span.start <= slot < span.start + span.slots * span.slot_size and (slot - span.start) % span.slot_size == 0
        if value and inside and base >= 0 and base % at.POOL_ALIGNMENT == 0:
            return Links(base, first ^ second == memory.arch.mask)
    return Links(root.pool.start, True)
