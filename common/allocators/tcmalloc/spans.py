"""The page map and its spans. Every page that tcmalloc ever got from the system belongs to a span.

pagemap.h: the page map is a radix tree from page numbers to spans. The entries of the first and
last page of a span always have the span. If the span has a size class, the entries of all its pages
have it (page_heap.cc, RecordSpan and RegisterSizeClass). Otherwise the entries of inner pages may
be stale."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from findleaks.allocators.base import Problem, add_first_problems
from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.allocators.tcmalloc.layout import IN_USE, SPAN, SPAN_WORDS
from findleaks.allocators.tcmalloc.locate import Place
from findleaks.allocators.tcmallocs.page_map import WORD, Tree, leaf_entries, read_nodes
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target

# Pieces of metadata at most this many bytes apart are joined if no span is between them.
# Descriptors, including freed ones, are in blocks of 128 KB (page_heap_allocator.h). Leaves of the
# page map have 2 MB.
NEAR = 1 << 20


class Span(NamedTuple):
    """A span: its memory, and fields of its descriptor. `objects` is the head of its list of free
    blocks."""

    address: int
    start: int
    end: int
    number: int  # size class; 0 for a span of one block, and for free pages
    location: int  # layout.IN_USE, NORMAL or RETURNED
    refcount: int
    objects: int
    sampled: bool


def read_tree(memory: Memory, engine: Engine, place: Place, problems: list[Problem]) -> Tree:
    """Read all entries of the page map."""
    leaves, nodes = read_nodes(memory, engine, place)
    found = [
        (first | number, pointer)
        for first, _, its in leaf_entries(memory.target, engine, place.layout, leaves, problems)
        for number, pointer in its
    ]
    return Tree([page for page, _ in found], [pointer for _, pointer in found], (), nodes)


def bridge(ranges: Iterable[Range]) -> list[Range]:
    """Join ascending ranges that are at most NEAR bytes apart."""
    found: list[Range] = []
    for start, end in ranges:
        if found and start - found[-1].end <= NEAR:
            found[-1] = Range(found[-1].start, max(found[-1].end, end))
        else:
            found.append(Range(start, end))
    return found


def read_spans(target: Target, engine: Engine, place: Place, tree: Tree, problems: list[Problem]) -> list[Span]:
    """Return all spans in ascending order. Report entries of the page map that do not point to a
    span."""
    addresses = sorted(set(tree.words))
    data, missing = read_records(target, engine, addresses, SPAN)
    words = memoryview(data).cast("Q")
    index = {address: i for i, address in enumerate(addresses) if i not in missing}
    starts, lengths, objects, bits = (words[column::SPAN_WORDS].tolist() for column in (0, 1, 4, 5))
    found: list[Span] = []
    # first page, last page, and the span in their entries, which does not have these pages
    bad: list[tuple[int, int, int]] = []
    pages, pointers, shift = tree.pages, tree.words, place.layout.shift
    at, count = 0, len(pages)
    while at < count:
        page, pointer = pages[at], pointers[at]
        i = index.get(pointer, -1)
        if i >= 0 and starts[i] == page and 0 < lengths[i] < 1 << 36:
            end = page + lengths[i]
            after = at + lengths[i]
            if after > count or pages[after - 1] != end - 1:
                after = bisect_left(pages, end, at)
            if pages[after - 1] == end - 1 and pointers[after - 1] == pointer:
                flags = bits[i]
                number, location = flags >> 16 & 0xFF, flags >> 24 & 3
                if location == IN_USE and number >= len(place.sizes):
                    problems.append(
                        Problem(pointer, f"the span at {page << shift:#x} has size class {number}, which does not exist: it is not read")
                    )
                elif location > 2:
                    problems.append(
                        Problem(pointer, f"the span at {page << shift:#x} is on list {location}, which does not exist: it is not read")
                    )
                else:
                    number = number if location == IN_USE else 0  # free pages still have a class
                    fields = (pointer, page << shift, end << shift, number, location, flags & 0xFFFF, objects[i], bool(flags >> 26 & 1))
                    found.append(tuple.__new__(Span, fields))  # takes half the time of Span(…)
                at = after
                continue
        if bad and bad[-1][2] == pointer and bad[-1][1] == page - 1:
            bad[-1] = (bad[-1][0], page, pointer)
        else:
            bad.append((page, page, pointer))
        at += 1
    add_first_problems(problems, (_bad_entries(shift, *entry, entry[2] in index) for entry in bad), "such places in the page map")
    return found


def _bad_entries(shift: int, first: int, last: int, pointer: int, readable: bool) -> Problem:
    """Make the problem that the span in these entries of the page map does not have the pages of
    the entries."""
    where = f"{first << shift:#x}" + (f" to {last + 1 << shift:#x}" if last > first else "")
    what = "has other pages" if readable else "cannot be read"
    return Problem(pointer, f"the page map has {where} in the span at {pointer:#x}, which {what}: that memory is not read")


def sampled_sizes(target: Target, engine: Engine, place: Place, spans: Sequence[Span]) -> dict[int, int]:
    """Return {start: usable size} of sampled blocks, each alone in its span.

    The span points to the stack and the requested size (common.h, StackTrace). The usable size is
    that of any block of this size (tcmalloc.cc, GetSizeWithCallback)."""
    chosen = sorted((span for span in spans if span.sampled and span.location == IN_USE), key=lambda span: span.objects)
    data, missing = read_records(target, engine, [span.objects for span in chosen], WORD)
    words = memoryview(data).cast("Q")
    found = {}
    for number, span in enumerate(chosen):
        asked = words[number]
        if number not in missing and asked <= span.end - span.start:
            fits = bisect_left(place.sizes, asked or 1)
            whole = span.end - span.start
            found[span.start] = min(place.sizes[fits], whole) if fits < len(place.sizes) else whole
    return found


def runs(spans: Sequence[Span], sizes: Sequence[int], sampled: Mapping[int, int]) -> array[int]:
    """Return all blocks of these spans as records for `Blocks.append_runs` ("Q"), in state in use.
    For `sampled`, see `sampled_sizes`."""
    words: list[int] = []
    for _, start, end, number, location, _, _, _ in spans:
        if location == IN_USE:
            if number:
                size = sizes[number]
                words += (start, size, size, (end - start) // size, 0, 0)
            else:
                size = sampled.get(start, end - start)
                words += (start, size, size, 1, 0, 0)
    return array("Q", words)
