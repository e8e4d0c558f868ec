"""Check that the walk does not perform: entries of the page map inside spans, bitmaps compared
with counters, links of central lists in both directions, and blocks in two caches or in a cache of
another size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.tcmalloc_google.heap import GoogleHeap
from findleaks.allocators.tcmalloc_google.layout import LISTS, NUM_LISTS
from findleaks.allocators.tcmalloc_google.spans import Span
from findleaks.allocators.tcmallocs.page_map import SPAN_MASK, WORD
from findleaks.target.base import Range

STEP = 1 << 16  # spans between two checks for Ctrl-C


def verify(one: GoogleHeap) -> Iterator[Optional[Problem]]:
    """Run all checks; see Allocator.verify."""
    checked = dict.fromkeys(("pages", "bitmaps", "spans on lists", "cached blocks"), 0)
    one.checked = checked
    yield from one.wrong_pages(checked, True, _wrong_page)
    for number, span in enumerate(one.records.with_bitmap()):
        free = one.records.bitmap_count(span)
        checked["bitmaps"] += 1
        if free + span.allocated != span.blocks:
            what = f"span at {span.start:#x}, {span.blocks:,} blocks of {span.size}: {free:,} free by its bitmap"
            yield Problem(span.address, f"{what}, {span.allocated:,} not free by its count")
        if number % STEP == STEP - 1:
            yield None
    known = {span.address: span.number for span in one.spans}
    for number, size in enumerate(one.place.sizes):
        if size and one.place.objects(number) > 1:
            yield from _central(one, number, known, checked)
            yield None
    checked["cached blocks"] = sum(len(held.blocks) for held in one.held)
    yield from one.wrongly_cached()


def _wrong_page(span: Span, page: int, word: int, number: int) -> Problem:
    """Make the problem that the page map has the wrong span for a page. If a span has a size class,
    the entries of all its pages must have the span, and the class in two places (pagemap.cc,
    RegisterSizeClass)."""
    what = f"the page map has page {page:#x} in the span at {word & SPAN_MASK:#x}, size class {number}"
    return Problem(span.address, f"{what} and {word >> 48}; it belongs to the span at {span.address:#x}, size class {span.number}")


def _central(one: GoogleHeap, number: int, known: dict[int, int], checked: dict[str, int]) -> Iterator[Problem]:
    """Check the rings of spans with free blocks. The links must agree in both directions, and each
    span of this class must be on one ring."""
    word, listed, broken = one.memory.word, set(), False
    for which in range(NUM_LISTS):
        head = one.place.of_class(number) + LISTS + which * 2 * WORD
        before, at = head, word(head)
        while at and at != head:
            back = word(at + WORD)
            if known.get(at) != number or back != before or at in listed:
                why = "is on it twice" if at in listed else f"has {back or 0:#x} before it"
                why = "has another class" if known.get(at) != number else why
                text = f"central list of size {one.place.sizes[number]}: the span at {at:#x} {why}; {before:#x} leads to it"
                yield Problem(before, text, damaged=Range(before, before + WORD))
                broken = True
                break
            listed.add(at)
            before, at = at, word(at)
        if not at and before != head:
            yield Problem(before, f"central list of size {one.place.sizes[number]}: the link at {before:#x} leads nowhere")
            broken = True
    checked["spans on lists"] += len(listed)
    left = [span for span in one.spans if span.number == number and span.allocated < span.blocks and span.address not in listed]
    if left and not broken:
        what = f"{len(left):,} spans of size {one.place.sizes[number]} with free blocks are on no central list"
        what += f", the first one at {left[0].address:#x}"
        yield Problem(left[0].address, what)
