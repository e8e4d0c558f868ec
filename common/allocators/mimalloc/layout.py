"""Layouts of mimalloc's structures: offsets in page and segment descriptors, newest first.

Sources, all 64-bit: include/mimalloc/types.h of mimalloc 2.1.3 to 2.4 and 3.0 to 3.4,
include/mimalloc-types.h of 2.0. A build that encodes its free lists (MI_SECURE >= 3, MI_DEBUG >= 1)
has two random keys in each page (`keys`), which move what follows.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

SLICE = 1 << 16
"""Bytes: MI_SEGMENT_SLICE_SIZE and MI_ARENA_SLICE_SIZE."""

SEGMENT = 1 << 25
"""Bytes: MI_SEGMENT_SIZE of 2.x, and its alignment."""

SMALLEST_ALIGNMENT = 32
"""Bytes. Every block is aligned to 16 (MI_MAX_ALIGN_SIZE); larger alignments may move the pointer.
"""


MAP_HEADER = 80
"""Bytes before the entries of the page map of 3.6.

They hold the number of entries, their bytes, memid with the map's own address, …
"""


class Page(NamedTuple):
    """A mimalloc page: `reserved` blocks of `size` bytes from `start`, `capacity` of them cut.

    `used` counts the blocks in use and those that other threads freed and the owner did not
    collect. `free`, `local` and `thread` are the heads of the lists, decoded; `keys` are (0, 0)
    where links are plain.

    `aligned`: some block was given out with its pointer moved inside it. `owner`: the owning
    thread's pointer (x86-64: fs base), 0 of an abandoned page. `heap`: the (t)heap it belongs to.
    `memory`: bytes of all its slices.
    """

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


def reader(fields: dict[str, tuple[int, str]], size: int) -> tuple[struct.Struct, tuple[str, ...]]:
    """A Struct that reads some fields of a record of `size` bytes, and their names in its order.

    `fields`: {name: (offset, code)}.
    """
    at, parts, names = 0, ["<"], []
    for name, (offset, code) in sorted(fields.items(), key=lambda field: field[1]):
        parts.append(f"{offset - at}x{code}")
        names.append(name)
        at = offset + struct.calcsize("<" + code)
    parts.append(f"{size - at}x")
    return struct.Struct("".join(parts)), tuple(names)


@dataclass(frozen=True)
class Segments:
    """A 2.x layout: offsets in mi_segment_t, and the fields of mi_page_t.

    `slices`: offset of the array of mi_page_t; `stride`: bytes of an element.
    """

    version: str
    used: int
    cookie: int
    segment_slices: int
    info_slices: int
    kind: int
    slice_entries: int
    thread_id: int
    slices: int
    stride: int
    fields: tuple[tuple[str, int, str], ...]
    delayed: tuple[int, ...]
    """Possible offsets of `thread_delayed_free` in mi_heap_t; `thread_id` is the next word.

    `keys` are `delayed_keys` bytes behind.
    """
    delayed_keys: int

    @property
    def keyed(self) -> bool:
        return any(name == "key0" for name, _, _ in self.fields)

    @property
    def fields_have_start(self) -> bool:
        return any(name == "start" for name, _, _ in self.fields)


def _page2(stride: int, keys: bool, old: bool) -> tuple[int, tuple[tuple[str, int, str], ...]]:
    """mi_page_t of 2.x: (size, fields).

    `old`: xblock_size has 32 bits, and there is no page_start.
    """
    fields = [("slice_count", 0, "I"), ("slice_offset", 4, "I"), ("capacity", 10, "H"), ("reserved", 12, "H"), ("flags", 14, "B")]
    fields += [("free", 16, "Q")]
    if old:
        fields += [("used", 24, "I"), ("size", 28, "I"), ("local", 32, "Q")]
        at = 40
    else:
        fields += [("local", 24, "Q"), ("used", 32, "H"), ("size", 40, "Q"), ("start", 48, "Q")]
        at = 56
    if keys:
        fields += [("key0", at, "Q"), ("key1", at + 8, "Q")]
        at += 16
    fields += [("thread", at, "Q"), ("heap", at + 8, "Q")]
    return stride + 16 * keys, tuple(fields)


def _segments() -> tuple[Segments, ...]:
    made = []
    for keys in (False, True):
        stride, fields = _page2(96, keys, False)
        made.append(Segments("2.1.8-2.4", 216, 224, 248, 256, 264, 272, 280, 288, stride, fields, (8,), 32))
        made.append(Segments("2.1.3-2.1.7", 208, 216, 224, 232, 240, 248, 256, 264, stride, fields, (8,), 32))
        stride, fields = _page2(80, keys, True)
        made.append(Segments("2.0.9-2.1.2", 208, 216, 224, 232, 240, 248, 256, 264, stride, fields, (2840, 2848), 32))
    return tuple(made)


SEGMENTS = _segments()


@dataclass(frozen=True)
class Pages:
    """A 3.x layout of mi_page_t.

    `pointer`: it has page_start, a pointer; else it has page_woffset, counted from the descriptor.
    """

    version: str
    bytes: int
    fields: tuple[tuple[str, int, str], ...]
    pointer: bool
    unit: int = 8
    """Bytes in a unit of page_woffset."""
    arena_kind: int = 7
    """MI_MEM_ARENA: memid has the arena's address.

    The three kinds before it, MI_MEM_OS, MI_MEM_OS_HUGE and MI_MEM_OS_REMAP, have base and size.
    """
    map_header: int = 0
    """Bytes before the first entry of the page map."""
    arena_fields: int = 0
    """Offset in mi_arena_t of start, slice_count and info_slices where they are in a row; else 0.
    """

    @property
    def os_kinds(self) -> tuple[int, ...]:
        return self.arena_kind - 3, self.arena_kind - 2, self.arena_kind - 1

    @property
    def keyed(self) -> bool:
        return any(name == "key0" for name, _, _ in self.fields)


def _pages() -> tuple[Pages, ...]:
    common: tuple[tuple[str, int, str], ...] = (
        ("owner", 0, "Q"),
        ("free", 8, "Q"),
        ("used", 16, "H"),
        ("capacity", 18, "H"),
        ("reserved", 20, "H"),
    )
    common += (("local", 24, "Q"), ("thread", 32, "Q"), ("size", 40, "Q"))
    made = [_page_3_6()]
    for keys in (False, True):
        more = 16 * keys
        for version, pointer, first, heap, memid in (
            ("3.4", False, 56, 56, 88),
            ("3.2-3.3", True, 56, 56, 96),
            ("3.0-3.1", True, 64, 64, 96),
        ):
            fields = [*common, ("start", 48, "Q" if pointer else "I"), ("heap", heap + more, "Q")]
            fields += [("base", memid + more, "Q"), ("extent", memid + more + 8, "Q"), ("kind", memid + more + 16, "I")]
            fields += [("pinned", memid + more + 20, "B"), ("committed", memid + more + 21, "B"), ("zero", memid + more + 22, "B")]
            if keys:
                fields += [("key0", first, "Q"), ("key1", first + 8, "Q")]
            made.append(Pages(version, memid + 24 + more, tuple(fields), pointer))
    return tuple(made)


def _page_3_6() -> Pages:
    """3.6.0, whose source was not at hand: derived from Debian's library in running processes.

    Only the build without keys is known.
    """
    fields: tuple[tuple[str, int, str], ...] = (
        ("owner", 8, "Q"),
        ("free", 16, "Q"),
        ("local", 24, "Q"),
        ("size", 32, "Q"),
        ("used", 40, "H"),
        ("start", 48, "Q"),
    )
    fields += (
        ("capacity", 56, "H"),
        ("reserved", 58, "H"),
        ("thread", 64, "Q"),
        ("heap", 72, "Q"),
        ("base", 104, "Q"),
        ("extent", 112, "Q"),
    )
    fields += (("kind", 120, "I"), ("pinned", 124, "B"), ("committed", 125, "B"), ("zero", 126, "B"))
    return Pages("3.6", 128, fields, False, 1, 6, MAP_HEADER, 40)


PAGES = _pages()

ARENA_SUBPROC = 24
ARENA_SIZES = (32, 40)
"""Offsets of mi_arena_t.slice_count: 32 in 3.0 and 3.1; 40 since 3.2, which has arena_idx at 32."""
