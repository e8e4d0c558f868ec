"""mimalloc's structures as data, newest first: where in a page's and a segment's descriptor the fields stand.

Sources, all 64-bit: include/mimalloc/types.h of mimalloc 2.1.3 to 2.4 and 3.0 to 3.4, include/mimalloc-types.h of 2.0. A build that
encodes its free lists (MI_SECURE >= 3, MI_DEBUG >= 1) has two random keys in each page (`keys`), which move what follows.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

SLICE = 1 << 16
"""MI_SEGMENT_SLICE_SIZE and MI_ARENA_SLICE_SIZE."""

SEGMENT = 1 << 25
"""MI_SEGMENT_SIZE and its alignment, of 2.x."""

SMALLEST_ALIGNMENT = 32
"""Every block is aligned on 16 bytes (MI_MAX_ALIGN_SIZE); a larger alignment may move the user's pointer into its block."""


MAP_HEADER = 80
"""Bytes before the entries of the page map of 3.6: the number of entries, their bytes, memid with the map's own address, …"""


class Page(NamedTuple):
    """A mimalloc page: `reserved` blocks of `size` bytes from `start`, of which `capacity` have been cut. `used` counts those in use and
    those that other threads freed and the owner did not collect. Lists: heads, decoded; `keys` are (0, 0) where links are plain.

    `aligned`: some block was given out with its pointer moved inside it. `owner` is the owning thread's pointer (x86-64: fs base), 0 of
    an abandoned page; `heap` the (t)heap it belongs to; `memory` the bytes of all its slices.
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
    """A Struct that reads these fields ({name: (offset, code)}) of a record of `size` bytes, and their names in its order."""
    at, parts, names = 0, ["<"], []
    for name, (offset, code) in sorted(fields.items(), key=lambda field: field[1]):
        parts.append(f"{offset - at}x{code}")
        names.append(name)
        at = offset + struct.calcsize("<" + code)
    parts.append(f"{size - at}x")
    return struct.Struct("".join(parts)), tuple(names)


@dataclass(frozen=True)
class Segments:
    """A 2.x layout. `header`: fields of mi_segment_t; `slices`: where its array of mi_page_t begins; `stride`: of which each takes."""

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
    """Where in mi_heap_t `thread_delayed_free` may stand; `thread_id` follows it, and `keys` stand `delayed_keys` behind."""
    delayed_keys: int

    @property
    def keyed(self) -> bool:
        return any(name == "key0" for name, _, _ in self.fields)

    @property
    def fields_have_start(self) -> bool:
        return any(name == "start" for name, _, _ in self.fields)


def _page2(stride: int, keys: bool, old: bool) -> tuple[int, tuple[tuple[str, int, str], ...]]:
    """mi_page_t of 2.x: (size, fields). `old`: with xblock_size of 32 bits, and without page_start."""
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
    """A 3.x layout of mi_page_t. `pointer`: page_start is one; else page_woffset, words from the descriptor."""

    version: str
    bytes: int
    fields: tuple[tuple[str, int, str], ...]
    pointer: bool
    unit: int = 8
    """Bytes that page_woffset counts in."""
    arena_kind: int = 7
    """MI_MEM_ARENA: memid has the arena's address. MI_MEM_OS, MI_MEM_OS_HUGE, MI_MEM_OS_REMAP, with base and size, come right before."""
    map_header: int = 0
    """Bytes before the first entry of the page map."""
    arena_fields: int = 0
    """Where mi_arena_t has its start, slice_count and info_slices, if they stand together."""

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
    """3.6.0, whose source was not at hand: found out from Debian's library at work. Only the build without keys is known."""
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
"""mi_arena_t.slice_count: at 32 in 3.0 and 3.1; since 3.2 arena_idx stands there, and slice_count at 40."""
