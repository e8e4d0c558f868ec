"""Go's heap in synthetic memory: it is found by the relations between table, arenas and spans. Damage makes spans
unknown, but never gives a wrong result."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Optional

import graphs
import pytest
from fake import FakeTarget, thread
from heaps import ListAllocator, session

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.runtimes.go import NOTE_NAME, NOTE_TYPE, find
from findleaks.runtimes.go.buildinfo import MAGIC, version
from findleaks.runtimes.go.heap import ARENA, MANUAL, OBJECTS, PAGE, SPANS_AT, TABLE, _slots, heap
from findleaks.runtimes.go.metadata import metadata
from findleaks.runtimes.go.span_table import Span
from findleaks.target.base import Module, Range, Region

BASE = 0xC000000000
FILE, DATA, TABLE_AT, ARENA_AT, SPANS, HEAP = 0x400000, 0x500000, 0x7F0000000000, 0x7F1000000000, 0x7F2000000000, 0x1000
SECOND_AT = 0x7F1100000000  # the heapArena of a second arena
PAGES_OPEN = 64

Pages = tuple[int, int, int]
"""First page, how many, state."""

GOOD: Sequence[Pages] = ((0, 2, OBJECTS), (2, 4, MANUAL), (8, 1, OBJECTS), (9, 3, 0))


def make_mspan(first: int, count: int, state: int) -> bytes:
    """Return an mspan of Go 1.26: startAddr at 24, npages at 32, the state at 99, elemsize and limit from 104 on."""
    start, size = BASE + first * PAGE, count * PAGE
    made = bytearray(160)
    struct.pack_into("<QQ", made, 24, start, count)
    struct.pack_into("<HBB", made, 96, 1, 4, state)
    struct.pack_into("<QQ", made, 104, 512 if state == OBJECTS else size, start + size)
    return bytes(made)


def make_target(
    spans: Sequence[Pages] = GOOD,
    place: int = 0,
    spoilt: bytes = b"",
    sp: int = 0,
    freed: int = 0,
    further: Optional[dict[int, bytes]] = None,
) -> FakeTarget:
    """A Go program with one arena; `spoilt` replaces the first mspan. `freed`: the number of pages at the start that still refer to
    the mspan of the first span, as pages of freed spans do. There is then a second arena, all pages of which do so."""
    table = bytearray(TABLE)
    struct.pack_into("<Q", table, ((BASE + (1 << 47)) >> 26) * 8, ARENA_AT)
    arena = bytearray(place + 8 * 8192 + 1024)
    struct.pack_into(f"<{freed}Q", arena, place, *[SPANS] * freed)
    second = {}
    if freed:
        struct.pack_into("<Q", table, ((BASE + ARENA + (1 << 47)) >> 26) * 8, SECOND_AT)
        second = {SECOND_AT: struct.pack("<8192Q", *[SPANS] * 8192) + bytes(1024), BASE + ARENA: bytes(PAGES_OPEN * PAGE)}
    records = b""
    for number, (first, count, state) in enumerate(spans):
        for page in range(first, first + count):
            struct.pack_into("<Q", arena, place + 8 * page, SPANS + 160 * number)
        if state == OBJECTS:
            arena[place + 8 * 8192 + first // 8] |= 1 << first % 8
        records += spoilt if spoilt and not number else make_mspan(first, count, state)
    data = bytearray(4096)
    struct.pack_into("<Q", data, 0x100, TABLE_AT)
    text = b"go1.26.8"
    data[0x200 : 0x200 + 33 + len(text)] = MAGIC.ljust(15, b"\x08") + b"\x02" + bytes(16) + bytes([len(text)]) + text
    memory = {
        FILE: image(),
        DATA: bytes(data),
        BASE: bytes(PAGES_OPEN * PAGE),
        TABLE_AT: bytes(table),
        ARENA_AT: bytes(arena),
        SPANS: records,
        **second,
        **(further or {}),
    }
    names = {FILE: "/bin/server", DATA: "/bin/server"}
    module = Module("/bin/server", 0, FILE, DATA + 4096)
    return FakeTarget(memory, names=names, permissions={FILE: "r--"}, modules=[module], threads=[thread(1, sp=sp)])


def image() -> bytes:
    """Return an ELF header and a note with Go's build ID."""
    note = struct.pack("<III", len(NOTE_NAME) + 1, 8, NOTE_TYPE) + NOTE_NAME.ljust(4, b"\0") + b"build/id"
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head = ident + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, FILE, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    program = struct.pack("<IIQQQQQQ", 4, 4, 0x200, FILE + 0x200, FILE + 0x200, len(note), len(note), 4)
    return (head + program).ljust(0x200, b"\0") + note.ljust(0xE00, b"\0")


@pytest.mark.parametrize("engine", [graphs.native, graphs.pure])
@pytest.mark.parametrize("place", SPANS_AT)
def test_arenas_and_spans(engine: Callable[[], Engine], place: int) -> None:
    found = heap(make_target(place=place), engine(), [Range(DATA, DATA + 4096)])
    assert found is not None
    assert (found.table, list(found.arenas)) == (TABLE_AT, [BASE])
    live = [Span(BASE + first * PAGE, BASE + (first + count) * PAGE, state) for first, count, state in GOOD if state]
    assert [span._replace(address=0) for span in found.spans] == live
    assert [span.address for span in found.spans] == [SPANS, SPANS + 160, SPANS + 320]
    assert (list(found.entries), found.layout) == ([ARENA_AT], place)


def test_lengths_of_the_page_allocator() -> None:
    """A length in the page allocator's five slices may look like an address. Five slices with other capacities belong
    to another structure."""
    data, levels = [Range(DATA, DATA + 4096)], (14, 17, 20, 23, 26)
    made = make_target()
    made.write(DATA + 0x300, struct.pack("<15Q", *(word for bits in levels for word in (SPANS, 0x5B29D8, 1 << bits))))
    found = heap(made, graphs.native(), data)
    assert found is not None
    assert metadata(Memory(made), graphs.native(), found, data).lengths == [Range(DATA + 0x300, DATA + 0x300 + 120)]
    made.write(DATA + 0x310, struct.pack("<Q", 1 << 15))
    assert metadata(Memory(made), graphs.native(), found, data).lengths == []


def test_pages_of_freed_spans() -> None:
    """Pages of freed spans refer to an mspan that spans other pages now. Both arenas are found."""
    spans = [(first + 40, count, state) for first, count, state in GOOD]
    found = heap(make_target(spans, freed=40), graphs.native(), [Range(DATA, DATA + 4096)])
    assert found is not None
    assert (list(found.arenas), list(found.entries)) == ([BASE, BASE + ARENA], [ARENA_AT, SECOND_AT])
    assert [(span.start - BASE) // PAGE for span in found.spans] == [40, 42, 48]


def test_a_thread_was_stopped_while_it_changed_a_span() -> None:
    """One of 201 mspans has no state yet. The others are listed."""
    spans = [(at, 1, OBJECTS) for at in range(201)]
    found = heap(make_target(spans, spoilt=make_mspan(0, 1, 0)), graphs.native(), [Range(DATA, DATA + 4096)])
    assert found is not None and len(found.spans) == 200


def test_parts_and_unused_memory() -> None:
    made = make_target(sp=BASE + 5 * PAGE)
    (go,) = find(made, graphs.native(), session(made, [ListAllocator(HEAP, HEAP, [])]).directory)
    assert (go.name, go.version, go.where) == ("Go", "1.26.8", "server")
    heap_part, table, own = go.parts()
    assert own.ranges == [Range(ARENA_AT, ARENA_AT + 8 * 8192 + 1024)]
    assert (heap_part.bytes, heap_part.used, table.bytes) == (PAGES_OPEN * PAGE, 7 * PAGE, TABLE)
    assert [(part.name, part.bytes // PAGE) for part in heap_part.parts] == [
        ("objects", 3),
        ("stacks of goroutines", 4),
        ("free pages", 57),
    ]
    assert go.dead() == [Range(BASE + 6 * PAGE, BASE + 8 * PAGE), Range(BASE + 9 * PAGE, BASE + PAGES_OPEN * PAGE)]
    assert go.stack_memory() == [Range(BASE, BASE + PAGES_OPEN * PAGE)]
    assert go.describe(BASE + 3 * PAGE) == "Go's heap, a goroutine's stack or collector data"
    assert go.describe(BASE + 7 * PAGE) == "Go's heap, free pages" and go.describe(DATA) == ""
    unread = "server: the tables of functions and types of Go 1.26.8 cannot be read, so goroutines and objects are unknown"
    assert [one.what for one in go.problems] == [unread]


@pytest.mark.parametrize(
    ("spans", "spoilt"),
    [
        (GOOD, make_mspan(0, 2, OBJECTS)[:99] + b"\7" + make_mspan(0, 2, OBJECTS)[100:]),  # an invalid state
        (((0, 2, OBJECTS), (1, 4, OBJECTS)), b""),  # two spans with the same page
        (GOOD, b"\xaa" * 160),  # overwritten
        (GOOD, make_mspan(32, 2, OBJECTS)),  # of another span, although objects begin where the first span was
    ],
)
def test_damage_makes_spans_unknown(spans: Sequence[Pages], spoilt: bytes) -> None:
    """If spans are unknown, the whole heap counts as in use."""
    made = make_target(spans, spoilt=spoilt)
    found = heap(made, graphs.native(), [Range(DATA, DATA + 4096)])
    assert found is not None and list(found.spans) == []
    (go,) = find(made, graphs.native(), session(made, [ListAllocator(HEAP, HEAP, [])]).directory)
    assert (go.parts()[0].used, go.dead(), go.counters()) == (None, [], {})


def test_spans_of_other_pages_are_no_heap() -> None:
    made = make_target([(0, 2, OBJECTS)], spoilt=make_mspan(30, 2, OBJECTS))
    assert heap(made, graphs.native(), [Range(DATA, DATA + 4096)]) is None
    (go,) = find(made, graphs.native(), session(made, [ListAllocator(HEAP, HEAP, [])]).directory)
    assert (go.parts(), go.stack_memory(), go.note()) == ([], [], "")
    assert "Go's heap was not found" in go.problems[0].what


def test_many_candidates_for_the_table_take_bounded_time() -> None:
    made = make_target([])
    words = [TABLE_AT + 4096 * number for number in range(512)]
    made.write(DATA, struct.pack("<512Q", *words))
    assert heap(made, graphs.native(), [Range(DATA, DATA + 4096)]) is None


def test_the_shadow_of_a_sanitizer_is_no_heap() -> None:
    """AddressSanitizer reserves many TiB of readable and writable memory for its shadow, below Go's heap."""
    shadow, own = Region(0x7FFF8000, 0x10007FFF8000, True, True, False), Region(0x10C000000000, 0x10C000400000, True, True, False)
    assert _slots([shadow, own]) == [0x10C000000000]


def test_arrays_that_look_like_the_table() -> None:
    """A word before the one that refers to the table leads to an array of pointers. These cover the pages, but have no spans."""
    other, arena, spans = 0x7F3000000000, 0x7F4000000000, 0x7F5000000000
    table, pages = bytearray(TABLE), bytearray(8 * 8192 + 1024)
    struct.pack_into("<Q", table, ((BASE + (1 << 47)) >> 26) * 8, arena)
    struct.pack_into("<Q", pages, 0, spans)
    pages[8 * 8192] = 1
    made = make_target(further={other: bytes(table), arena: bytes(pages), spans: make_mspan(0, 1, OBJECTS)[:40] + bytes(120)})
    made.write(DATA + 0x80, struct.pack("<Q", other))
    found = heap(made, graphs.native(), [Range(DATA, DATA + 4096)])
    assert found is not None and (found.table, len(found.spans)) == (TABLE_AT, 3)
    made.write(DATA + 0x100, bytes(8))  # without the table, this array is used instead, and its objects are unknown
    (go,) = find(made, graphs.native(), session(made, [ListAllocator(HEAP, HEAP, [])]).directory)
    assert "the spans of Go's heap cannot be read" in go.problems[0].what


def test_control_c() -> None:
    made = make_target()
    made.stop_after(0)
    with pytest.raises(Interrupted):
        heap(made, graphs.native(), [Range(DATA, DATA + 4096)])


def test_version_ends_at_its_terminator() -> None:
    made = make_target()
    assert version(made, Range(DATA, DATA + 4096)) == "1.26.8"
    made.write(DATA + 0x220, b"\xff")
    assert version(made, Range(DATA, DATA + 4096)) == ""
    assert version(made, Range(DATA, DATA + 0x208)) == ""
