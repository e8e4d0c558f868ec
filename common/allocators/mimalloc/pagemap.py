"""mimalloc 3.x: the two-level page map from each 64 KiB of addresses to the descriptor of their
page.

src/page-map.c: an entry of the first level covers 512 MiB, and points to 8192 entries, each a
mi_page_t* or 0. Pages are in arenas (src/arena.c). Large pages, and pages of large alignment, are
in separate mappings. The field memid shows the kind of memory. A descriptor is at the start of the
memory of its page; since 3.3 it may be in an array at the start of the arena."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.mimalloc.layout import ARENA_SIZES, ARENA_SUBPROC, PAGES, SLICE, MimallocPage, PageLayout, make_page
from findleaks.allocators.mimalloc.map_header import measure_map_header
from findleaks.errors import Interrupted, UnreadableMemory
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges

SUB_COUNT = 1 << 13  # entries of a map of the second level
SUB_SPAN = SUB_COUNT * SLICE  # bytes of addresses that such a map covers
MAX_ARENAS = 160
SUBPROC_WORDS = 16  # the largest number of words of mi_subproc_t before its list of arenas
SAMPLE = 256  # pages on which layouts are tried
OLDEST = "3.0-3.1"


@dataclass
class MimallocArena:
    """An arena. `number` is its position in the process's list, `header` the size of its header in
    bytes."""

    start: int
    end: int
    number: int
    header: int


@dataclass
class PageMapInstance:
    """A mimalloc with a page map, of which a process may have several: its layout, its arenas, its
    pages, and the mappings of pages outside arenas. `own` is the memory of the map."""

    layout: PageLayout
    arenas: list[MimallocArena]
    mappings: list[Range]
    pages: list[MimallocPage]
    own: list[Range]
    problems: list[Problem]
    forgetful: bool = False  # pages without the flag may have aligned blocks; see _read_pages


def read_instance(target: Target, variable: int, top: int, writable: Sequence[Range]) -> Optional[PageMapInstance]:
    """Read the instance whose page map is at `top`, or return None if the map contains no page.
    Raises Interrupted."""
    memory = Memory(target)
    header = measure_map_header(memory, top) if memory.word(top + 16) == top else 0
    table = top + header
    first = memory.word(table)
    if first is None:
        return None
    count = (first - table) // 8
    own = [Range(variable, variable + 8), Range(top, first + SUB_COUNT * 8)]
    problems: list[Problem] = []
    entries: dict[int, int] = {}
    for index in _list_indices(writable, count):
        if target.is_interrupted():
            raise Interrupted
        sub = memory.word(table + 8 * index)
        if not sub or index == 0:
            continue
        words = memory.words(sub, SUB_COUNT)
        if words is None:
            what = f"page map of {index * SUB_SPAN:#x} at {sub:#x} cannot be read: blocks there are missing"
            problems.append(Problem(top + 8 * index, what, False))
            continue
        own.append(Range(sub, sub + SUB_COUNT * 8))
        base = index * SUB_SPAN
        lowest = dict(zip(reversed(words), range(SUB_COUNT - 1, -1, -1)))
        for meta, number in lowest.items():
            if meta and meta not in entries:
                entries[meta] = base + number * SLICE
    layout = _find_layout(memory, entries, header) if entries else None
    if layout is None:
        return None
    found = PageMapInstance(layout, [], [], [], own, problems)
    _read_pages(memory, found, entries)
    return found


def _list_indices(writable: Sequence[Range], count: int) -> list[int]:
    """Return the indices of those entries of the first level that cover writable memory."""
    return sorted({index for start, end in writable for index in range(start // SUB_SPAN, min((end - 1) // SUB_SPAN + 1, count))})


def _read_records(memory: Memory, layout: PageLayout, metas: Iterable[int]) -> Iterator[tuple[int, Optional[dict[str, int]]]]:
    """Yield the address and the fields of the descriptors at these addresses, with `start` as a
    pointer. The fields are None if the descriptor is unreadable."""
    for meta in metas:
        try:
            record = layout.page.read(memory.target.read(meta, layout.page.size))
        except (UnreadableMemory, OverflowError, ValueError):
            yield meta, None
            continue
        if not layout.pointer:
            record["start"] = meta + layout.unit * record["start"]
        yield meta, record


def _find_layout(memory: Memory, entries: dict[int, int], header: int) -> Optional[PageLayout]:
    """Return the layout that fits most of a sample of pages, or None. A layout fits a page if the
    first block is at the addresses that the map assigns to the page, and memid is plausible.
    Typical values of heaps and keys add points."""
    metas = list(entries)
    sample = metas[:: max(1, len(metas) // SAMPLE)]
    best, most = None, 0
    for layout in (row for row in PAGES if row.map_header == bool(header)):
        fits = 0
        for meta, record in _read_records(memory, layout, sample):
            if record is None or _find_fault(record, entries[meta]):
                continue
            fits += 1 + (record["heap"] > 1 << 16)
            if layout.keyed:
                fits += record["key0"] > 1 << 32 and record["key1"] > 1 << 32 and record["key0"] % 8 != 0
        if fits > most:
            best, most = layout, fits
    return best


def _find_fault(record: dict[str, int], slice_: int) -> str:
    """Return "", or the reason why this is not a page."""
    start, size, reserved = record["start"], record["size"], record["reserved"]
    if not size or size % 8 or size >> 47 or start >> 48:
        return f"has blocks of {size:#x} bytes"
    if start % 8:
        return f"has its first block at {start:#x}, which is not a multiple of 8"
    if not slice_ <= start < slice_ + SLICE and not (reserved == 1 and slice_ <= start):
        return f"has its first block at {start:#x}, outside its memory at {slice_:#x}"
    if reserved < 1 or record["capacity"] > reserved:
        return f"has {record['capacity']} blocks of {reserved}"
    if record["used"] > record["capacity"]:
        return f"has {record['used']} blocks in use of {record['capacity']}"
    if not 1 <= record["kind"] <= 9 or max(record["pinned"], record["committed"], record["zero"]) > 1:
        return f"has memory of unknown kind {record['kind']}"
    return ""


class _Records(NamedTuple):
    """The descriptors of the map's entries.

    `pages` has (fields, address of the descriptor, first address of the page's memory) of each.
    `arenas` and `mappings` contain these pages. `bad` has (address, why this is not a page, what
    may be its heap). `given_back` is true if some page is empty and has no owner."""

    pages: list[tuple[dict[str, int], int, int]]
    arenas: set[int]
    mappings: list[Range]
    bad: list[tuple[int, str, int]]
    given_back: bool


def _read_pages(memory: Memory, found: PageMapInstance, entries: dict[int, int]) -> None:
    """Read every page, and the arenas and mappings that contain the pages. mimalloc 3.0.1 has two
    faults:

    - Its map keeps pages that were given back (page-map.c, _mi_page_map_unregister). Such pages are
      empty and have no owner, or are overwritten.
    - A page loses its flag for aligned blocks when its thread ends (mi_page_set_heap).

    If the first fault is detected, any page may have aligned blocks."""
    layout = found.layout
    records = _sort_records(memory, layout, entries)
    overwritten = _report_bad(memory, found, records)
    stale = (records.given_back or overwritten) and layout.version == OLDEST
    found.forgetful = stale and any(record["owner"] & 2 for record, _, _ in records.pages)
    found.arenas = _read_arenas(memory, layout, records.arenas, found.problems)
    found.mappings = [m for m in merge_ranges(records.mappings) if not any(a.start < m.end and m.start < a.end for a in found.arenas)]
    spans = sorted([(a.start, a.end, f"arena {a.number}") for a in found.arenas] + [(m.start, m.end, "mappings") for m in found.mappings])
    starts = [span[0] for span in spans]
    for record, meta, slice_ in records.pages:
        start = record["start"]
        index = bisect_right(starts, start) - 1
        if index < 0 or start + record["size"] * record["capacity"] > spans[index][1]:
            found.problems.append(Problem(meta, f"page {meta:#x} lies in no arena and no mapping of mimalloc's: its blocks are not read"))
        else:
            found.pages.append(_make_page(record, meta, slice_, spans[index][2]))
    found.pages.sort(key=lambda page: page.start)


def _sort_records(memory: Memory, layout: PageLayout, entries: dict[int, int]) -> _Records:
    """Read the descriptor of each entry of the map."""
    pages, arenas, mappings, bad, given_back = [], set(), [], [], False
    for meta, record in _read_records(memory, layout, entries):
        why = "cannot be read" if record is None else _find_fault(record, entries[meta])
        if record is None or why:
            bad.append((meta, why, record["heap"] if record and record["size"] else 0))
            continue
        # The page was given back. 3.0.1 leaves such pages in its map.
        if not record["used"] and not record["owner"] & ~0x3F:
            given_back = True
            continue
        pages.append((record, meta, entries[meta]))
        if record["kind"] == layout.arena_kind:
            arenas.add(record["base"])
        elif record["kind"] in layout.os_kinds:
            low = min(record["base"], meta)
            end = max(record["base"] + record["extent"], record["start"] + record["size"] * record["reserved"])
            if end - low < 1 << 44:
                mappings.append(Range(low, end))
    return _Records(pages, arenas, mappings, bad, given_back)


def _report_bad(memory: Memory, found: PageMapInstance, records: _Records) -> bool:
    """Report entries that are not a page. Return whether some of them are pages that mimalloc 3.0.1
    has returned, and that were overwritten."""
    homes = {record["heap"] for record, _, _ in records.pages} - {0}
    empty = (0,) * (found.layout.page.size // 8)
    overwritten = False
    for meta, why, home in records.bad:
        if found.layout.version == OLDEST and home not in homes:
            overwritten = True
        elif why == "cannot be read" or home in homes or memory.words(meta, found.layout.page.size // 8) != empty:
            found.problems.append(Problem(meta, f"page {meta:#x} {why}: its blocks are not read"))
    return overwritten


def _make_page(record: dict[str, int], meta: int, slice_: int, label: str) -> MimallocPage:
    """Make the page of a descriptor. `label` is the label of the span that contains the page."""
    start, size, owner = record["start"], record["size"], record["owner"]
    memory = -(-(start - slice_ + size * record["reserved"]) // SLICE) * SLICE
    return make_page(record, meta, start, size, record["thread"] & ~1, bool(owner & 2), owner & ~0x3F, memory, label)


def _read_arenas(memory: Memory, layout: PageLayout, known: set[int], problems: list[Problem]) -> list[MimallocArena]:
    """Return the arenas that pages refer to, and the other arenas of mi_subproc_t.arenas, which may
    have no pages."""
    order: list[int] = []
    for address in sorted(known):
        if address not in order:
            order += [a for a in _find_listed(memory, address) or [address] if a not in order]
    found = []
    for number, address in enumerate(order):
        sizes = [memory.word(address + offset) or 0 for offset in ARENA_SIZES]
        which = 0 if sizes[0] >= 64 else 1
        start, slices, info = address, sizes[which], memory.word(address + ARENA_SIZES[which] + 8) or 0
        if layout.arena_fields:
            start, slices, info = memory.words(address + layout.arena_fields, 3) or (address, 0, 0)
        if not info <= slices < 1 << 28 or not slices:
            what = f"arena {address:#x} has {slices} slices of 64 KiB: its header was overwritten, its blocks are not read"
            problems.append(Problem(address, what))
            continue
        found.append(MimallocArena(start, start + slices * SLICE, number, info * SLICE))
    found.sort(key=lambda arena: arena.start)
    kept: list[MimallocArena] = []
    for arena in found:
        if kept and arena.start < kept[-1].end:
            problems.append(Problem(arena.start, f"arena {arena.start:#x} overlaps the one at {kept[-1].start:#x}: it is not read"))
            continue
        kept.append(arena)
    return kept


def _find_listed(memory: Memory, address: int) -> list[int]:
    """Return the arenas of the list that contains this arena; [] if no list is found."""
    subproc = memory.word(address + ARENA_SUBPROC)
    words = memory.words(subproc, SUBPROC_WORDS + MAX_ARENAS) if subproc else None
    if words is None or subproc is None or address not in words:
        return []
    at = words.index(address)
    while at and _is_arena(memory, words[at - 1], subproc):
        at -= 1
    listed: list[int] = []
    while at < len(words) and len(listed) < MAX_ARENAS and (not words[at] or _is_arena(memory, words[at], subproc)):
        listed += [words[at]] if words[at] else []
        at += 1
    return listed


def _is_arena(memory: Memory, address: int, subproc: int) -> bool:
    return bool(address) and not address & 0xFFF and memory.word(address + ARENA_SUBPROC) == subproc
