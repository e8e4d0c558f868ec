"""Find the partitions (PartitionRoot) of a process, and read their super pages and direct maps.

A root has its own address, inverted, in its member inverted_self_. The roots of Chromium are static
variables. findleaks finds other roots through the metadata of their super pages, because this
metadata begins with the address of the root. layout.py has the sources."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.images import find_images
from findleaks.allocators.memory import Memory
from findleaks.allocators.partitionalloc import layout as at
from findleaks.allocators.partitionalloc.layout import BUCKETS, ENTRY, METADATA, PAGE, SLOT_SIZE, SUPER_PAGE, Bucket
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target


class Anchor(NamedTuple):
    """A root, and the place of its inverted address: `inverted` bytes after the root. `file` is the
    loaded file that contains the root, or "" if the root is outside of files."""

    root: int
    inverted: int
    file: str


class RootLayout(NamedTuple):
    """Offsets in PartitionRoot: of the buckets, of current_extent_, and of the first of COUNTERS.
    `has_brp`: the build has BackupRefPtr, and therefore BRP_COUNTERS."""

    bucket: Bucket
    buckets: int
    extent: int
    counters: int
    has_brp: bool


class DirectMap(NamedTuple):
    """A reservation [start, end) for one slot. `entry` is the address of its metadata."""

    start: int
    end: int
    entry: int
    slot: int
    slot_size: int
    raw_size: int


class Extent(NamedTuple):
    """Adjacent super pages [start, end)."""

    start: int
    end: int


class Root(NamedTuple):
    """A partition. `metadata` is the distance from a super page to its metadata. `sizes` has, for
    each bucket, the slot size and the number of pages of a span. `extras` is the number of bytes in
    each slot that the program cannot use. `counted`: whether slots have reference counters."""

    address: int
    number: int
    layout: RootLayout
    sizes: Sequence[tuple[int, int]]
    extents: Sequence[Extent]
    direct_maps: Sequence[DirectMap]
    metadata: int
    extras: int
    counted: bool
    pool: Range
    counters: dict[str, int]

    @property
    def first_bucket(self) -> int:
        return self.address + self.layout.buckets

    def super_pages(self) -> Iterator[int]:
        for extent in self.extents:
            yield from range(extent.start, extent.end, SUPER_PAGE)


def find_anchors(target: Target, engine: Engine) -> list[Anchor]:
    """Return the roots that are variables of loaded files."""
    memory, found = Memory(target), []
    mask = target.arch.mask
    for image in find_images(target):
        low, high = ~image.data[-1].end & mask, ~image.data[0].start & mask
        for piece in image.pieces(target):
            for place in engine.search(piece, low, high + 1):
                root = ~(memory.word(place) or 0) & mask
                if 0 < place - root < at.ROOT_BYTES and root % at.ROOT_ALIGNMENT == 0:
                    found.append(Anchor(root, place - root, image.name))
                if len(found) > at.MOST_ROOTS:
                    return found
    return found


def find_others(memory: Memory, known: Sequence[Anchor]) -> list[Anchor]:
    """Return the roots outside of files, for example in blocks of a heap. Each root is found
    through a mapping with its metadata, which begins with the address of the root."""
    inverted = {one.inverted for one in known}
    found: dict[int, Anchor] = {one.root: one for one in known}
    for region in memory.target.regions():
        if not region.writable or not region.private or region.name.startswith("/") or len(found) > at.MOST_ROOTS:
            continue
        root = memory.word(region.start) or 0
        if root and root not in found and root % at.ROOT_ALIGNMENT == 0:
            place = next((one for one in inverted if memory.word(root + one) == ~root & memory.arch.mask), None)
            if place is not None:
                found[root] = Anchor(root, place, "")
    return [one for one in found.values() if one.root not in {other.root for other in known}]


def find_layout(memory: Memory, anchors: Iterable[Anchor]) -> Optional[RootLayout]:
    """Return the layout that fits a root with super pages, or None if no layout fits any root."""
    for one in anchors:
        data = memory.read(one.root, one.inverted)
        found = _find_buckets(data)
        if found is None:
            continue
        buckets, bucket = found
        extent = _find_extent(memory, one, data, buckets + KNOWN_BUCKETS * bucket.stride)
        if extent is None:
            continue
        for brp in (len(at.BRP_COUNTERS), 0):
            counters = extent - 8 * (at.AFTER_COUNTERS + brp + len(at.COUNTERS))
            initialized, *values = struct.unpack_from("<9Q", data, counters - 8)
            committed, _, reserved, mapped = values[:4]
            if initialized & 0xFF == 1 and reserved and reserved % SUPER_PAGE == committed % PAGE == mapped % PAGE == 0:
                return RootLayout(bucket, buckets, extent, counters, brp > 0)
    return None


def _find_buckets(data: bytes) -> Optional[tuple[int, Bucket]]:
    """Return the offset and the layout of the buckets. They are recognized by their first slot
    sizes, which ascend by 16 bytes."""
    for bucket in BUCKETS:
        for offset in range(ROOT_START, min(at.MOST_SETTINGS, len(data) - (KNOWN_BUCKETS + 1) * bucket.stride), 8):
            sizes = [struct.unpack_from("<I", data, offset + SLOT_SIZE + number * bucket.stride)[0] for number in range(KNOWN_BUCKETS)]
            if sizes == [at.SMALLEST * (number + 1) for number in range(KNOWN_BUCKETS)]:
                return offset, bucket
    return None


ROOT_START = 0x40  # bytes; the buckets follow the settings, which are aligned to cache lines
KNOWN_BUCKETS = 8  # number of first buckets whose slot sizes are compared


def _find_extent(memory: Memory, one: Anchor, data: bytes, start: int) -> Optional[int]:
    """Return the offset of the member current_extent_. Its value is the address of metadata that
    belongs to this root."""
    for offset in range(start + -start % 8, len(data) - 16, 8):
        current, first = struct.unpack_from("<2Q", data, offset)
        if current and current % PAGE == first % PAGE == 0 and memory.word(current) == memory.word(first) == one.root:
            return offset
    return None


def read_root(memory: Memory, address: int, number: int, layout: RootLayout, taken: set[int], problems: list[Problem]) -> Optional[Root]:
    """Read a partition. Return None if the partition has no memory or cannot be read. `taken` has
    the super pages of partitions that were read before. The super pages of this partition are
    added."""
    data = memory.read(address, layout.extent + 8 * (at.DIRECT_MAPS + 1))
    if not data:
        problems.append(Problem(address, f"PartitionAlloc's partition at {address:#x} cannot be read: its blocks are not read", False))
        return None
    next_super_page, _, _, current, first, direct = struct.unpack_from("<6Q", data, layout.extent + 8 * at.NEXT_SUPER_PAGE)
    metadata = _find_metadata(memory, current, next_super_page)
    if metadata is None:
        if current or direct:
            what = f"PartitionAlloc's partition at {address:#x} has no readable super page: its blocks are not read"
            problems.append(Problem(address, what, False))
        return None
    extents = list(_read_extents(memory, address, first, metadata, taken, problems))
    if not extents:
        return None
    maps = list(_read_direct_maps(memory, direct, metadata, layout.bucket, problems))
    counted = _has_table(memory.target, extents[0].start) and layout.has_brp
    extras = at.find_extras(data[: layout.buckets & -8])
    names = at.COUNTERS + (at.BRP_COUNTERS if layout.has_brp else ())
    # In processes of Chromium, total_size_of_committed_pages was found to be negative.
    counters = dict(zip(names, struct.unpack_from(f"<{len(names)}q", data, layout.counters)))
    return Root(
        address,
        number,
        layout,
        list(_read_sizes(data, layout)),
        extents,
        maps,
        metadata,
        extras if extras is not None else at.COUNTER if counted else 0,
        counted,
        _find_pool(data[: layout.buckets & -8], extents[0].start),
        counters,
    )


def _find_metadata(memory: Memory, current: int, next_super_page: int) -> Optional[int]:
    """Return the distance from a super page to its metadata. It is one page, or, if metadata is
    separate, the distance from the pool to the metadata. It is computed from the current extent,
    which ends at `next_super_page`."""
    count = memory.int32(current + 16) if current else None
    if count is None or next_super_page % SUPER_PAGE or not next_super_page:
        return None
    return current - (next_super_page - (count & 0xFFFF) * SUPER_PAGE)


def _read_extents(memory: Memory, root: int, first: int, metadata: int, taken: set[int], problems: list[Problem]) -> Iterator[Extent]:
    """Yield the extents (runs of super pages) of a partition, and add their super pages to
    `taken`. No two extents of a process overlap."""
    place, total = first, 0
    while place:
        words = memory.words(place, 3)
        count = words[2] & 0xFFFF if words else 0
        total += count
        pages = range(place - metadata, place - metadata + count * SUPER_PAGE, SUPER_PAGE)
        is_possible = total <= at.MOST_SUPER_PAGES and _is_reservation(memory, pages.start, pages.stop, place)
        if words is None or words[0] != root or not is_possible or not taken.isdisjoint(pages):
            what = f"PartitionAlloc's list of super pages is damaged at {place:#x}: the rest of the partition at {root:#x} is not read"
            problems.append(Problem(place, what))
            return
        taken.update(pages)
        yield Extent(pages.start, pages.stop)
        place = words[1]


def _is_reservation(memory: Memory, start: int, end: int, metadata: int) -> bool:
    """Return whether [start, end) can be reserved memory that begins with a super page, whose
    metadata is at `metadata`. Damaged links contain addresses that do not exist."""
    top = memory.arch.top
    return start % SUPER_PAGE == 0 and 0 < start < end <= top and METADATA <= metadata <= top - (end - start)


def _read_direct_maps(memory: Memory, first: int, metadata: int, bucket: Bucket, problems: list[Problem]) -> Iterator[DirectMap]:
    """Yield the direct maps of a list of PartitionDirectMapExtent. In memory, two metadata entries
    and a bucket precede each PartitionDirectMapExtent."""
    place, before = first, 0
    for _ in range(at.MOST_DIRECT_MAPS):
        if not place:
            return
        words = memory.words(place, 5)
        entry = place - bucket.stride - 2 * ENTRY
        start = entry // METADATA * METADATA - metadata
        found = memory.members(entry + 2 * ENTRY + SLOT_SIZE, "I")
        raw = memory.word(entry + ENTRY)
        slot = start + entry % METADATA // ENTRY * at.PARTITION_PAGE
        size = found[0] if found else 0
        good = words is not None and found is not None and raw is not None and words[1] == before and words[2] == entry + 2 * ENTRY
        good = good and words is not None and _is_reservation(memory, start, start + words[3], place)
        if words is None or not good or words[3] % PAGE or slot + size > start + words[3] or size % PAGE:
            what = f"PartitionAlloc's list of direct maps is damaged at {place:#x}: further large blocks are not read"
            problems.append(Problem(place, what))
            return
        yield DirectMap(start, start + words[3], entry, slot, size, raw or 0)
        place, before = words[0], place
    problems.append(Problem(first, f"PartitionAlloc's list of direct maps at {first:#x} has no end: further large blocks are not read"))


def _read_sizes(data: bytes, layout: RootLayout) -> Iterator[tuple[int, int]]:
    """Yield, for each bucket, the slot size and the number of pages of a span."""
    end = layout.counters - 8 - 2 * layout.bucket.stride
    for offset in range(layout.buckets, end + 1, layout.bucket.stride):
        size, pages = (struct.unpack_from("<I", data, offset + place)[0] for place in (SLOT_SIZE, layout.bucket.pages))
        yield size, pages & 0xFF


def _has_table(target: Target, super_page: int) -> bool:
    """Return whether a super page has an InSlotMetadataTable. If it does, its third page is
    writable."""
    place = super_page + at.TABLE
    return any(region.start <= place < region.end and region.writable for region in target.regions())


def _find_pool(settings: bytes, super_page: int) -> Range:
    """Return the address range of the pool that contains a super page. Since Chromium 138, the
    settings contain {start, mask} of the pool."""
    words = struct.unpack(f"<{len(settings) // 8}Q", settings[: len(settings) & -8])
    for base, mask in zip(words, words[1:]):
        size = -mask & (1 << 64) - 1
        if size >= at.POOL_ALIGNMENT and size & size - 1 == 0 and base == super_page & mask:
            return Range(base, base + size)
    base = super_page // at.POOL_SIZE * at.POOL_SIZE
    return Range(base, base + at.POOL_SIZE)
