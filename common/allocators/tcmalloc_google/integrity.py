"""verify: checks of Google's tcmalloc beyond those of walking it.

The page map inside spans, bitmaps against counts, central lists' links both ways, blocks in two
caches or in one of another size.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.tcmalloc_google.layout import LISTS, NUM_LISTS, WORD
from findleaks.allocators.tcmalloc_google.locate import SPAN_MASK
from findleaks.target.base import Range

if TYPE_CHECKING:
    from findleaks.allocators.tcmalloc_google.view import GoogleView

STEP = 1 << 16
"""Pages or spans looked at between two chances to stop."""


def verify(one: GoogleView) -> Iterator[Optional[Problem]]:
    """See Allocator.verify."""
    checked = dict.fromkeys(("pages", "bitmaps", "spans on lists", "cached blocks"), 0)
    one.checked = checked
    yield from _page_map(one, checked)
    for number, span in enumerate(one.spans.with_bitmap()):
        free = one.spans.bitmap_count(span)
        checked["bitmaps"] += 1
        if free + span.allocated != span.blocks:
            what = f"span at {span.start:#x}, {span.blocks:,} blocks of {span.size}: {free:,} free by its bitmap"
            yield Problem(span.address, f"{what}, {span.allocated:,} not free by its count")
        if number % STEP == STEP - 1:
            yield None
    known = {span.address: span.number for span in one.spans.found}
    for number, size in enumerate(one.place.sizes):
        if size and one.place.objects(number) > 1:
            yield from _central(one, number, known, checked)
            yield None
    yield from _cached(one, checked)


def _page_map(one: GoogleView, checked: dict[str, int]) -> Iterator[Optional[Problem]]:
    """Every page of a span with a size class names it and the class twice.

    See pagemap.cc, RegisterSizeClass.
    """
    tree, shift, since_yield = one.tree, one.place.layout.shift, 0
    for span in one.spans.found:
        if not span.number:
            continue
        first, last = span.start >> shift, span.end >> shift
        at = bisect_left(tree.pages, first)
        for page in range(first, last):
            word = number = 0
            if at < len(tree.pages) and tree.pages[at] == page:
                word, number = tree.words[at], tree.classes[at]
                at += 1
            if word & SPAN_MASK != span.address or word >> 48 != span.number or number != span.number:
                what = f"the page map says that page {page << shift:#x} is of the span at {word & SPAN_MASK:#x}, size class {number}"
                yield Problem(span.address, f"{what} and {word >> 48}; it is of that at {span.address:#x}, size class {span.number}")
        checked["pages"] += last - first
        since_yield += last - first
        if since_yield >= STEP:
            since_yield = 0
            yield None


def _central(one: GoogleView, number: int, known: dict[int, int], checked: dict[str, int]) -> Iterator[Problem]:
    """Check the rings of spans with free blocks.

    They are linked both ways, their spans are of this size class, and each such span is on one
    ring.
    """
    word, listed, broken = one.memory.word, set(), False
    for which in range(NUM_LISTS):
        head = one.place.of_class(number) + LISTS + which * 2 * WORD
        before, at = head, word(head)
        while at and at != head:
            back = word(at + WORD)
            if known.get(at) != number or back != before or at in listed:
                why = "is not of it" if known.get(at) != number else "is on it twice" if at in listed else f"has {back or 0:#x} before it"
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
    left = [span for span in one.spans.found if span.number == number and span.allocated < span.blocks and span.address not in listed]
    if left and not broken:
        what = f"{len(left):,} spans of size {one.place.sizes[number]} with free blocks are on no central list"
        what += f", that at {left[0].address:#x} first"
        yield Problem(left[0].address, what)


def _cached(one: GoogleView, checked: dict[str, int]) -> Iterator[Optional[Problem]]:
    """Each freed block is in one cache, and in one of its size class."""
    times: Counter[int] = Counter(one.free)
    for held in one.held():
        times.update(held.blocks)
        checked["cached blocks"] += len(held.blocks)
        for address in held.blocks:
            span = one.span_at(address)
            if span is not None and span.number != held.number:
                what = f"{span.size} bytes" if span.number else "a span of its own"
                where = f"a cache of blocks of {one.place.sizes[held.number]} (size class {held.number})"
                yield Problem(address, f"{where} has {address:#x}, which is a block of {what} (size class {span.number})")
        yield None
    for address, count in times.items():
        if count > 1:
            yield Problem(address, f"the block at {address:#x} is {count} times in lists of freed blocks: it was freed twice")
