"""mimalloc 2.x: segments of 32 MiB, or of one huge block, whose headers describe the pages inside.

src/segment.c: `slices` in the header has an entry for each 64 KiB. The first entry of a page is its
mi_page_t, which has the number of slices of the page. The cookie of a segment is the segment's
address XOR the main heap's cookie. So (cookie XOR address) is the same for all segments of an
instance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.mimalloc.layout import SEGMENT, SEGMENTS, SLICE, MimallocPage, SegmentLayout, make_page
from findleaks.errors import UnreadableMemory
from findleaks.target.base import Range, Target

HUGE_SIZE = 1 << 31  # MI_HUGE_BLOCK_SIZE, in xblock_size for sizes that do not fit in it

MASK = (1 << 64) - 1
USER_ADDRESSES = 1 << 47  # mappings of x86-64 and AArch64 are usually below this address
MOST = 64
"""The largest number of instances that are read. A process has one for each copy of mimalloc that
is linked into it."""


@dataclass
class Segment:
    """A segment. `thread` is its owner (0: abandoned). Its pages ascend."""

    start: int
    end: int
    thread: int
    cookie: int
    header: int
    pages: list[MimallocPage] = field(default_factory=list)


@dataclass
class SegmentInstance:
    """All segments of one instance, and their layout. `secret` is the cookie of the main heap."""

    layout: SegmentLayout
    secret: int
    segments: list[Segment]
    problems: list[Problem]


def read_instances(target: Target, addresses: Iterable[int]) -> list[SegmentInstance]:
    """Read the instances with segments at these addresses. Addresses that no layout fits are
    ignored."""
    memory = Memory(target)
    tried: dict[int, dict[int, tuple[SegmentLayout, Segment, list[Problem]]]] = {}
    scores: Counter[tuple[int, int]] = Counter()
    covered = 0
    for at in sorted(addresses):
        if at < covered:
            continue
        for number, layout in enumerate(SEGMENTS):
            problems: list[Problem] = []
            segment = _read_segment(memory, at, layout, problems)
            if segment is not None:
                tried.setdefault(at, {})[number] = (layout, segment, problems)
                unlikely = sum(_is_unlikely(page, layout.keyed) for page in segment.pages)
                scores[segment.cookie ^ at, number] += len(segment.pages) - len(problems) - unlikely
                covered = max(covered, segment.end if segment.pages else 0)
    found: dict[tuple[int, int], SegmentInstance] = {}
    # Several layouts may fit a header. The layout that fits the most pages of the instance is used.
    for at, fits in tried.items():
        number = max(fits, key=lambda number: (scores[fits[number][1].cookie ^ at, number], -number))
        layout, segment, problems = fits[number]
        entry = found.setdefault((number, segment.cookie ^ at), SegmentInstance(layout, segment.cookie ^ at, [], []))
        entry.segments.append(segment)
        entry.problems += problems
    return list(_merge_instances(found.values()))


def _is_unlikely(page: MimallocPage, keyed: bool) -> bool:
    """Return whether pointers of this page are not user addresses, or both random keys look like
    user addresses. This distinguishes a layout with keys from CPython's layout without keys,
    because both have the same size and the same first fields."""
    key0, key1 = page.keys
    return page.heap >= USER_ADDRESSES or page.thread >= USER_ADDRESSES or (keyed and key0 < USER_ADDRESSES and key1 < USER_ADDRESSES)


def _merge_instances(found: Iterable[SegmentInstance]) -> Iterable[SegmentInstance]:
    """Yield the largest instances, at most MOST. An instance with a single segment is merged into
    one with many segments and the same layout, because a single different cookie means
    corruption."""
    entries = sorted(found, key=lambda entry: -sum(len(segment.pages) for segment in entry.segments))
    kept: list[SegmentInstance] = []
    homes: dict[SegmentLayout, SegmentInstance] = {}
    for entry in entries:
        home = homes.get(entry.layout)
        if home is None or len(entry.segments) > 1:
            kept.append(entry)
            if len(entry.segments) > 1:
                homes.setdefault(entry.layout, entry)
            continue
        segment = entry.segments[0]
        right, at = segment.start ^ home.secret, segment.start + home.layout.header.offsets["cookie"]
        what = f"segment {segment.start:#x} has cookie {segment.cookie:#x} in place of {right:#x}: its header was overwritten"
        home.problems += [*entry.problems, Problem(at, what, damaged=Range(at, at + 8), expected=right)]
        home.segments.append(segment)
    for entry in kept:
        entry.segments.sort(key=lambda segment: segment.start)
        if "start" not in entry.layout.page.offsets:
            _correct_starts(entry)
    found = [entry for entry in kept if any(segment.pages for segment in entry.segments) or len(entry.segments) > 1]
    if len(found) > MOST:
        at = found[MOST].segments[0].start
        found[0].problems.append(
            Problem(at, f"segment {at:#x} has another cookie, and so have {len(found) - MOST - 1} more: they are not read")
        )
    return found[:MOST]


def _read_segment(memory: Memory, at: int, layout: SegmentLayout, problems: list[Problem]) -> Optional[Segment]:
    """Read the segment at `at`, or return None if its header or its slices do not fit this
    layout."""
    try:
        header = layout.header.read(memory.target.read(at, layout.header.size))
        if not _is_plausible(header):
            return None
        data = memory.target.read(at, layout.header.size + (header["slice_entries"] + 1) * layout.page.size)
    except UnreadableMemory:
        return None
    slices, info = header["segment_slices"], header["info_slices"]
    segment = Segment(at, at + slices * SLICE, header["thread_id"], header["cookie"], min(info, slices) * SLICE)
    index = steps = 0
    bad: list[Problem] = []
    while index < header["slice_entries"]:
        place = layout.header.size + index * layout.page.size
        record, here = layout.page.read(data, place), at + place
        count = record["slice_count"]
        if index == 0 and (count != info or record["slice_offset"]):
            return None
        if not count or record["slice_offset"] or (header["kind"] == 0 and index + count > slices):
            if not steps or not segment.pages:
                return None
            claim = f"has a count of {count} slices at offset {record['slice_offset']}"
            what = f"slice {index} of segment {at:#x} {claim}: the pages behind it are not read"
            bad.append(Problem(here, what))
            break
        if index and record["size"] > 1 and record["reserved"]:
            page = _make_page(record, here, at + index * SLICE, min(count, slices - index) * SLICE, segment.thread)
            why = _find_fault(page, at + index * SLICE, segment.end)
            if why:
                bad.append(Problem(here, f"page {here:#x} of segment {at:#x} {why}: its blocks are not read"))
            else:
                segment.pages.append(page)
        index += count
        steps += 1
    if bad and len(bad) >= max(steps - 1, 1):
        return None
    problems += bad
    return segment


def _is_plausible(header: dict[str, int]) -> bool:
    """Whether this may be a segment's header. A segment of kind 0 has the usual size."""
    slices, kind = header["segment_slices"], header["kind"]
    if not header["cookie"] or header["used"] > 512 or kind > 1 or (kind == 0 and slices != SEGMENT // SLICE):
        return False
    return 1 <= header["info_slices"] <= header["slice_entries"] <= min(slices, 513) and slices < 1 << 32


def _make_page(record: dict[str, int], meta: int, area: int, size: int, thread: int) -> MimallocPage:
    """Make the page of a slice's record. `area` and `size` are the memory of the page."""
    block, start = record["size"], record.get("start")
    if start is None:
        # 2.0.9, src/segment.c: 3 * MI_MAX_ALIGN_GUARANTEE.
        start = area + (384 if 8 <= block <= 1024 else 0)
        if block >= HUGE_SIZE:
            block = size
    return make_page(record, meta, start, block, record["thread"] & ~3, bool(record["flags"] & 2), thread, size)


def _find_fault(page: MimallocPage, area: int, end: int) -> str:
    """Return why this cannot be a page, or ""."""
    if page.capacity > page.reserved:
        return f"has {page.capacity} blocks of {page.reserved}"
    if page.start % 8:
        return f"has its first block at {page.start:#x}, which is not a multiple of 8"
    if page.size % 8 or not area <= page.start or page.start + page.reserved * page.size > end:
        return f"has {page.reserved} blocks of {page.size:#x} bytes from {page.start:#x}, more than fit"
    if page.used > page.capacity:
        return f"has {page.used} blocks in use of {page.capacity}"
    return ""


def _correct_starts(found: SegmentInstance) -> None:
    """Correct the address of the first block of pages of 2.1.0 to 2.1.2. These versions have the
    layout of 2.0.9, but another position of the first block. The addresses of blocks on free lists
    show which version this is."""
    votes: Counter[bool] = Counter()
    for page in (page for segment in found.segments for page in segment.pages):
        head = page.free if not any(page.keys) else 0
        if head and page.size <= 1024:
            area = page.start - 384
            older, newer = (head - page.start) % page.size == 0, (head - area) % page.size == 0
            if older != newer:
                votes[newer] += 1
    if votes[True] > votes[False]:
        for segment in found.segments:
            segment.pages = [page for page in map(_move_start, segment.pages) if _fits(page, segment, found.problems)]


def _move_start(page: MimallocPage) -> MimallocPage:
    """Return the page with the first block of 2.1.0 to 2.1.2."""
    if not 8 <= page.size <= 1024:
        return page
    return page._replace(start=page.start - 384 + (3 * page.size if page.size <= 64 else page.size if page.size <= 512 else 0))


def _fits(page: MimallocPage, segment: Segment, problems: list[Problem]) -> bool:
    """Return whether the page is inside its segment. If it is not, report it."""
    why = _find_fault(page, 0, segment.end)
    if why:
        problems.append(Problem(page.meta, f"page {page.meta:#x} of segment {segment.start:#x} {why}: its blocks are not read"))
    return not why
