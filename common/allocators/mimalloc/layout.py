"""Layouts of mimalloc's structures: offsets in page and segment descriptors, newest first.

Sources, all 64-bit: include/mimalloc/types.h of mimalloc 2.1.3 to 2.4 and 3.0 to 3.4,
include/mimalloc-types.h of 2.0; Include/internal/mimalloc/mimalloc/types.h of CPython 3.13.5,
3.14.3 and 3.14.10, free-threaded. A build that encodes its free lists (MI_SECURE >= 3, MI_DEBUG >=
1) has two random keys in each page (`keys`) before the fields that follow them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from findleaks.allocators.record import Record

SLICE = 1 << 16  # bytes: MI_SEGMENT_SLICE_SIZE and MI_ARENA_SLICE_SIZE
SEGMENT = 1 << 25  # bytes: MI_SEGMENT_SIZE of 2.x, which is also its alignment

SMALLEST_ALIGNMENT = 32
"""Bytes. Blocks are aligned to 16 (MI_MAX_ALIGN_SIZE). A larger alignment may move the pointer."""


class MimallocPage(NamedTuple):
    """A mimalloc page: `reserved` blocks of `size` bytes from `start`, of which `capacity` were
    ever used.

    - used: blocks in use, and blocks that other threads freed and the owner has not collected
    - free, local, thread: heads of lists, decoded
    - keys: the keys of encoded links; (0, 0) if links are plain
    - aligned: whether some pointer was moved inside its block
    - owner: the thread pointer of the owner (x86-64: fs base); 0 if the page is abandoned
    - heap: its heap (in 3.x: theap)
    - memory: bytes of all its slices"""

    meta: int
    start: int
    size: int
    capacity: int
    reserved: int
    used: int
    free: int
    local: int
    thread: int
    keys: tuple[int, int]
    aligned: bool
    owner: int
    heap: int
    memory: int
    arena: str

    @property
    def end(self) -> int:
        return self.start + self.capacity * self.size


def make_page(
    record: dict[str, int], meta: int, start: int, size: int, thread: int, aligned: bool, owner: int, memory: int, arena: str = ""
) -> MimallocPage:
    """Make a page from the fields of a descriptor, and from values that are found differently in
    each version."""
    counts = record["capacity"], record["reserved"], record["used"]
    keys = record.get("key0", 0), record.get("key1", 0)
    return MimallocPage(
        meta, start, size, *counts, record["free"], record["local"], thread, keys, aligned, owner, record["heap"], memory, arena
    )


KEYS = ((False, ""), (True, "Q key0, Q key1, "))  # without and with the keys of encoded lists


@dataclass(frozen=True)
class SegmentLayout:
    """A layout of 2.x: mi_segment_t up to its array of mi_page_t (`page`, which has keys if
    `keyed`).

    `delayed` are possible offsets of `thread_delayed_free` in mi_heap_t. The next member of
    mi_heap_t is `thread_id`."""

    version: str
    header: Record
    page: Record
    keyed: bool
    delayed: tuple[int, ...]


DELAYED_KEYS = 32  # bytes from `thread_delayed_free` to the heap's keys


def _segments() -> Iterator[SegmentLayout]:
    counts = "Q segment_slices, Q info_slices, I kind, 4x, Q slice_entries, Q thread_id"
    newest = Record(f"216x, Q used, Q cookie, 16x, {counts}")
    older = Record(f"208x, Q used, Q cookie, {counts}")
    common = "I slice_count, I slice_offset, 2x, H capacity, H reserved, B flags, x, Q free"
    for keyed, keys in KEYS:
        page = Record(f"{common}, Q local, H used, 6x, Q size, Q start, {keys}Q thread, Q heap, 24x")
        yield SegmentLayout("2.1.8-2.4", newest, page, keyed, (8,))
        yield SegmentLayout("2.1.3-2.1.7", older, page, keyed, (8,))
        # xblock_size has 32 bits, and there is no page_start.
        page = Record(f"{common}, I used, I size, Q local, {keys}Q thread, Q heap, 24x")
        yield SegmentLayout("2.0.9-2.1.2", older, page, keyed, (2840, 2848))
    # Free-threaded CPython has its own copy, with more words in a page: qsbr_node and qsbr_goal.
    page = Record(f"{common}, Q local, H used, 6x, Q size, Q start, Q thread, Q heap, 40x")
    yield SegmentLayout("2.1.8-2.4, CPython's", newest, page, False, (8,))
    page = Record(f"{common}, I used, I size, Q local, Q thread, Q heap, 40x")
    yield SegmentLayout("2.1.2, CPython's", older, page, False, (2840,))


SEGMENTS = tuple(_segments())


@dataclass(frozen=True)
class PageLayout:
    """A layout of 3.x: mi_page_t (`page`, which has keys if `keyed`). If `pointer` is set, the
    field page_start is the address of the first block. Otherwise page_woffset is the distance from
    the descriptor to the first block."""

    version: str
    page: Record
    keyed: bool
    pointer: bool
    unit: int = 8  # bytes in a unit of page_woffset
    arena_kind: int = 7  # MI_MEM_ARENA: memid has the arena's address
    # whether a header precedes the page map's entries: their number, bytes, memid, …
    map_header: bool = False
    # offset of start, slice_count and info_slices in mi_arena_t, which follow each other; or 0
    arena_fields: int = 0

    @property
    def os_kinds(self) -> tuple[int, ...]:
        """MI_MEM_OS, MI_MEM_OS_HUGE and MI_MEM_OS_REMAP, for which memid has base and size."""
        return self.arena_kind - 3, self.arena_kind - 2, self.arena_kind - 1


def _pages() -> Iterator[PageLayout]:
    memid = "Q base, Q extent, I kind, B pinned, B committed, B zero, x"
    # The source of 3.6.0 was not available. Its layout is derived from Debian's library in running
    # processes. Only the build without keys is supported.
    page = "8x, Q owner, Q free, Q local, Q size, H used, 6x, Q start, H capacity, H reserved, 4x, Q thread, Q heap"
    yield PageLayout("3.6", Record(f"{page}, 24x, {memid}"), False, False, 1, 6, True, 40)
    common = "Q owner, Q free, H used, H capacity, H reserved, 2x, Q local, Q thread, Q size"
    for keyed, keys in KEYS:
        yield PageLayout("3.4", Record(f"{common}, I start, 4x, {keys}Q heap, 24x, {memid}"), keyed, False)
        yield PageLayout("3.2-3.3", Record(f"{common}, Q start, {keys}Q heap, 32x, {memid}"), keyed, True)
        yield PageLayout("3.0-3.1", Record(f"{common}, Q start, 8x, {keys}Q heap, 24x, {memid}"), keyed, True)


PAGES = tuple(_pages())

ARENA_SUBPROC = 24
# offsets of mi_arena_t.slice_count up to 3.1, and since 3.2 (in which 32 is arena_idx)
ARENA_SIZES = (32, 40)
