"""Check that the walk does not perform: entries of the page map inside spans, lists of spans in
both directions, and blocks on two lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.tcmalloc.heap import TcmallocHeap
from findleaks.allocators.tcmalloc.layout import EMPTY, IN_USE, NEXT, NONEMPTY, NORMAL, NUM_SPANS, PREV, RETURNED, SPAN
from findleaks.allocators.tcmalloc.spans import Span
from findleaks.allocators.tcmallocs.page_map import WORD
from findleaks.target.base import Range


def verify(one: TcmallocHeap) -> Iterator[Optional[Problem]]:
    """Run all checks; see Allocator.verify."""
    checked = dict.fromkeys(("pages", "spans on lists", "free-list links"), 0)
    one.checked = checked
    yield from one.wrong_pages(checked, False, _wrong_page)
    known = {span.address: span for span in one.spans}
    for number in range(1, len(one.place.sizes)):
        yield from _central(one, number, known, checked)
        yield None
    yield from _page_heap(one, known, checked)
    checked["free-list links"] += len(one.free) + sum(len(held.blocks) for held in one.held)
    yield from one.wrongly_cached()
    yield from _tails(one)


def _wrong_page(span: Span, page: int, pointer: int, _: int) -> Problem:
    """Make the problem that the page map has the wrong span for a page. If a span has a size class,
    the entries of all its pages must have this span (page_heap.cc, RegisterSizeClass)."""
    what = f"the page map has page {page:#x} in the span at {pointer:#x}; it belongs to the span at {span.address:#x}"
    return Problem(span.address, f"{what}: free() of a block there would use the wrong span", expected=span.address)


def _chain(one: TcmallocHeap, header: int, name: str, limit: int, seen: list[int]) -> Iterator[Problem]:
    """Follow a ring of spans (span.cc, DLL_*) from its header. Spans that link back are added to
    `seen`."""
    before, at = header, one.memory.word(header + NEXT)
    members: set[int] = set()
    while at != header:
        back = one.memory.word(at + PREV) if at else None
        if not at or back is None:
            what = f"{name}: the link at {before + NEXT:#x} leads to {at or 0:#x}, which cannot be read"
            yield Problem(before + NEXT, what, damaged=_word(before + NEXT))
            return
        if back != before:
            what = f"{name}: the span at {at:#x} has {back:#x} before it, the list has {before:#x}"
            yield Problem(at + PREV, what, damaged=_word(at + PREV), expected=before)
            return
        if at in members or len(members) > limit:
            yield Problem(at, f"{name}: has a cycle at {at:#x}")
            return
        members.add(at)
        seen.append(at)
        before, at = at, one.memory.word(at + NEXT)
    last = one.memory.word(header + PREV)
    if last != before:
        what = f"{name}: ends with {last or 0:#x}, the list with {before:#x}"
        yield Problem(header + PREV, what, damaged=_word(header + PREV), expected=before)


def _central(one: TcmallocHeap, number: int, known: dict[int, Span], checked: dict[str, int]) -> Iterator[Optional[Problem]]:
    """Check the rings of spans of a size class. Each span must be on the right ring."""
    central, size, total = one.place.of_class(number), one.place.sizes[number], 0
    mine = {span.address for span in one.spans_of(number)}
    broken = False
    for at, full in ((EMPTY, True), (NONEMPTY, False)):
        name = f"central list of size {size}, spans {'without' if full else 'with'} free blocks"
        seen: list[int] = []
        for problem in _chain(one, central + at, name, len(known) + 1, seen):
            broken = True
            yield problem
        total += len(seen)
        checked["spans on lists"] += len(seen)
        for address in seen:
            span = known.get(address)
            if span is None or address not in mine:
                yield Problem(address, f"{name}: has the span at {address:#x}, which is not of this size class")
            elif full != (span.objects == 0):
                yield Problem(address, f"{name}: has the span of {span.start:#x}, which belongs on the other list")
        mine.difference_update(seen)
    counted = one.memory.word(central + NUM_SPANS) or 0
    if mine and not broken:
        what = f"{len(mine):,} spans of size class {number} ({size} bytes) are on no central list, the first one at {min(mine):#x}"
        yield Problem(min(mine), what)
    if counted != total and not broken:
        what = f"the central list of size {size} counts {counted:,} spans, {total:,} are on its lists"
        yield Problem(central + NUM_SPANS, what, damaged=_word(central + NUM_SPANS), expected=total)


def _page_heap(one: TcmallocHeap, known: dict[int, Span], checked: dict[str, int]) -> Iterator[Optional[Problem]]:
    """Check free spans. Short spans are on rings by length, and the others are in two sets
    (page_heap.h)."""
    layout = one.place.layout
    free = [span for span in one.spans if span.location != IN_USE]
    left = {span.address for span in free if span.end - span.start <= layout.most_pages * layout.page}
    broken = False
    for pages in range(1, layout.most_pages + 1):
        for location, header in ((NORMAL, 0), (RETURNED, SPAN)):
            name = f"page heap's list of {'returned ' if location == RETURNED else ''}spans of {pages} pages"
            seen: list[int] = []
            for problem in _chain(one, one.place.root + layout.lists + (pages - 1) * 2 * SPAN + header, name, len(known) + 1, seen):
                broken = True
                yield problem
            checked["spans on lists"] += len(seen)
            for address in seen:
                span = known.get(address)
                if span is None or span.location != location or span.end - span.start != pages * layout.page:
                    yield Problem(address, f"{name}: has the span at {address:#x}, which does not belong there")
            left.difference_update(seen)
    if left and not broken:
        yield Problem(min(left), f"{len(left):,} free spans are on no list of the page heap, the first one at {min(left):#x}")
    sets = one.place.root + layout.lists - 2 * 48
    for location, at in ((NORMAL, sets), (RETURNED, sets + 48)):
        counted = one.memory.word(at + 40) or 0
        large = sum(span.location == location and span.end - span.start > layout.most_pages * layout.page for span in free)
        if counted != large:
            which = "large returned spans" if location == RETURNED else "large spans"
            yield Problem(at + 40, f"the page heap's set of {which} has {counted:,}, the page map {large:,}")


def _tails(one: TcmallocHeap) -> Iterator[Optional[Problem]]:
    """Check that the second word of a transfer cache's slot is the last block of its chain."""
    for held in one.held:
        if held.kind == "transfer" and held.blocks:
            last, at = held.blocks[-1], held.address + WORD
            tail = one.memory.word(at)
            if tail != last:
                what = f"slot {held.owner} of the transfer cache of size {one.place.sizes[held.number]}: its chain ends with {last:#x}"
                yield Problem(at, f"{what}, but the end in the slot is {tail or 0:#x}", damaged=_word(at), expected=last)


def _word(address: int) -> Range:
    return Range(address, address + WORD)
