"""The page map and its spans.

pagemap.h: the page map is a radix tree from page numbers to spans. The entry of the first page of a
span always has the span. If the span has a size class, the entries of all its pages have it.
Freeing a span clears only the entry of the first page (huge_page_aware_allocator.h, Delete). Free
memory has no span, and its pages have size class 0."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

from findleaks.allocators.base import Problem, add_first_problems
from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.allocators.tcmalloc_google.layout import (
    ALLOCATED_SIZE,
    BITMAP,
    BITMAP_BITS,
    CACHED_INDICES,
    COUNTS,
    FIRST_PAGE,
    GUARDED,
    GUARDED_STATUS,
    LIST_END,
    PAGES,
    PROXY,
    SAMPLE,
    SAMPLED,
    SMALL_PAGES,
    SPAN,
    SPAN_WORDS,
    UNIT,
)
from findleaks.allocators.tcmalloc_google.locate import Place
from findleaks.allocators.tcmallocs.page_map import SPAN_MASK, WORD, Tree, leaf_entries, read_nodes
from findleaks.engine.contract import Engine
from findleaks.engine.terms import RUN, State, run_states
from findleaks.errors import Interrupted
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges, range_at

STEP = 1 << 14  # spans between two checks for Ctrl-C
ALL_USED = run_states(State.IN_USE, State.IN_USE)
BY_BITMAP = run_states(State.IN_USE, State.FREE)


class Span(NamedTuple):
    """A span. `record` is its index in `Spans.data`. `number` is its size class, 0 for a span of
    one block. `size` is the usable size of a block."""

    address: int
    record: int
    start: int
    end: int
    number: int
    size: int
    blocks: int
    allocated: int
    sampled: bool


def read_tree(memory: Memory, engine: Engine, place: Place, problems: list[Problem]) -> tuple[Tree, list[int]]:
    """Read all entries of the page map, and the first addresses that its leaves cover."""
    layout = place.layout
    pages: list[int] = []
    words: list[int] = []
    classes: list[int] = []
    leaves, nodes = read_nodes(memory, engine, place)
    for first, leaf, found in leaf_entries(memory.target, engine, layout, leaves, problems):
        compact = memoryview(_bytes(memory.target, leaf, layout.spans_at)).cast("B" if layout.compact == 1 else "H")
        pages += [first | number for number, _ in found]
        words += [word for _, word in found]
        classes += [compact[number] for number, _ in found]
    return Tree(pages, words, classes, nodes), [first << layout.shift for first, _ in leaves]


def lies_in(mapped: Sequence[Range], one: Range) -> bool:
    """Return whether a range is inside one of these ranges, which are sorted and disjoint."""
    around = range_at(mapped, one.start)
    return around is not None and one.end <= around.end


def _bytes(target: Target, start: int, size: int) -> bytearray:
    """Read memory. Missing parts are zeros."""
    data = bytearray(size)
    for piece in target.pieces(start, start + size):
        at = piece.address - start
        data[at : at + len(piece.data)] = piece.data
    return data


class Spans:
    """All spans, ascending in `found`, with their records in `data`.

    `proxies` are blocks that tcmalloc allocates in place of sampled blocks. `guarded` are sampled
    blocks between guard pages."""

    def __init__(self, target: Target, engine: Engine, place: Place, tree: Tree, problems: list[Problem]) -> None:
        self._target = target
        self._engine = engine
        self._place = place
        self.found: list[Span] = []
        self.proxies: list[int] = []
        self.guarded: list[int] = []
        self.samples: list[int] = []  # addresses of SampledAllocation
        self.addresses = sorted({word & SPAN_MASK for word in tree.words} - {0})
        self.data, self._missing = read_records(target, engine, self.addresses, SPAN)
        self._read(tree, problems)
        self._starts = [span.start for span in self.found]
        self._read_samples(problems)

    def _read(self, tree: Tree, problems: list[Problem]) -> None:
        """Read every span that the entry of its first page has."""
        place, layout = self._place, self._place.layout
        words = memoryview(self.data).cast("Q")
        at = {page: number for number, page in enumerate(tree.pages)}
        mask, shift, large = (1 << layout.page_bits) - 1, layout.shift, 3 << layout.large_bit
        sampled_bit = layout.large_bit + 1
        counts, firsts, lengths = (words[column::SPAN_WORDS].tolist() for column in (COUNTS, FIRST_PAGE, PAGES))
        pages_of = [first & mask for first in firsts]
        entries = list(map(at.get, pages_of, repeat(-1)))
        end, bad = 0, []
        mapped = merge_ranges(Range(region.start, region.end) for region in self._target.regions() if region.writable)
        addresses, classes, named, sizes = self.addresses, tree.classes, tree.words, place.sizes
        for record in sorted(range(len(addresses)), key=pages_of.__getitem__):
            entry, address = entries[record], addresses[record]
            if entry < 0 or named[entry] & SPAN_MASK != address or record in self._missing:
                continue
            page, first, number = pages_of[record], firsts[record], classes[entry]
            pages = lengths[record] if first & large else lengths[record] & SMALL_PAGES
            why = ""
            if page < end:
                why = "begins inside the one before"
            elif not pages or not lies_in(mapped, Range(page << shift, page + pages << shift)):
                why = f"has {pages} pages, which are not all mapped"
            elif number and (number >= len(sizes) or not sizes[number]):
                why = f"has size class {number}, which does not exist"
            elif number and pages != place.pages[number]:
                why = f"has {pages} pages, but spans of its size class have {place.pages[number]}"
            if why:
                bad.append(Problem(address, f"span of {page << shift:#x} {why}: it is not read"))
                continue
            end = page + pages
            bytes_, sampled = pages << shift, bool(first >> sampled_bit & 1)
            size = sizes[number] if number else bytes_
            fields = (address, record, page << shift, end << shift, number, size, bytes_ // size, counts[record] >> 32 & 0xFFFF, sampled)
            self.found.append(tuple.__new__(Span, fields))  # takes half the time of Span(…)
        add_first_problems(problems, bad, "spans that are not used")

    def _read_samples(self, problems: list[Problem]) -> None:
        """Read the sampled blocks, each alone in its span. The usable size is that of the size
        class (allocation_sampling.h, SampleifyAllocation)."""
        words = memoryview(self.data).cast("Q")
        chosen = sorted((words[span.record * SPAN_WORDS + SAMPLE], at) for at, span in enumerate(self.found) if span.sampled)
        self.samples = [address for address, _ in chosen]
        data, missing = read_records(self._target, self._engine, self.samples, SAMPLED)
        fields = memoryview(data).cast("Q")
        for number, (address, at) in enumerate(chosen):
            span, base = self.found[at], number * SAMPLED // WORD
            size = fields[base + ALLOCATED_SIZE // WORD]
            if number in missing or not 0 < size <= span.end - span.start:
                problems.append(Problem(address, f"the record of the sampled block at {span.start:#x} is invalid"))
                continue
            if data[number * SAMPLED + GUARDED_STATUS] == GUARDED:
                self.guarded.append(span.start)
                continue
            self.found[at] = span._replace(size=size)
            if fields[base + PROXY // WORD]:
                self.proxies.append(fields[base + PROXY // WORD])

    def runs(self, start: int, end: int) -> array[int]:
        """Return the records for `Blocks.append_runs` ("Q") of the spans in [start, end). `data`
        has their bits."""
        out: list[int] = []
        least = self._place.layout.least_bitmap
        first, last = (bisect_left(self._starts, bound) for bound in (start, end))
        for _, record, begin, stop, number, size, count, _, _ in self.found[first:last]:
            if number and count > 1 and size >= least:
                out += (begin, size, size, count, (record * SPAN_WORDS + BITMAP) * WORD * 8, BY_BITMAP)
            elif number:
                out += (begin, size, size, count, 0, ALL_USED)
            else:  # a sampled block may have any size
                out += (begin, stop - begin, size, 1, 0, ALL_USED)
        assert len(out) % RUN == 0
        return array("Q", out)

    def free_lists(self, problems: list[Problem]) -> array[int]:
        """Return the addresses of the free blocks ("Q") of spans without bitmap (span.cc, ListPush
        and ListPopBatch).

        Up to 8 indices are in the span itself. The others are in a chain of free blocks. Each block
        of the chain has the index of the next one, and indices of further free blocks. The span has
        the number of indices in the first block; the other blocks have as many indices as fit."""
        free: array[int] = array("Q")
        wrong = self._follow(free)
        add_first_problems(problems, wrong, "spans whose lists and counts differ", self._place.root)
        return free

    def _follow(self, free: array[int]) -> Iterator[Problem]:
        """Append the free blocks of all spans without bitmap, and yield their problems."""
        least = self._place.layout.least_bitmap
        for step, span in enumerate(self.found):
            if span.number and span.size < least and span.allocated < span.blocks:
                indices, why = self._indices(span)
                limit = span.blocks * span.size // UNIT
                stride = span.size // UNIT
                good = {index for index in indices if index < limit and index % stride == 0}
                if not why and len(good) != len(indices):
                    why = "it has the index of a block that does not exist, or one index twice"
                free.extend(span.start + index * UNIT for index in sorted(good))
                if why or len(good) + span.allocated != span.blocks:
                    yield _free_problem(span, len(good), why)
            if step % STEP == STEP - 1 and self._target.is_interrupted():
                raise Interrupted

    def _indices(self, span: Span) -> tuple[list[int], str]:
        """Return the indices of free blocks in the order of the list, and "" or the reason why the
        list ended early."""
        record = memoryview(self.data)[span.record * SPAN : span.record * SPAN + SPAN].cast("H")
        embedded, head, kept = record[8], record[9], record[11] & 0xF
        found = list(record[BITMAP * 4 : BITMAP * 4 + min(kept, CACHED_INDICES)])
        if head == LIST_END:
            return found, ""
        piece = _bytes(self._target, span.start, span.end - span.start)
        view, most = memoryview(piece).cast("H"), span.size // 2 - 1
        while head != LIST_END and len(found) <= span.blocks:
            at = head * UNIT // 2
            if head * UNIT + span.size > span.end - span.start:
                return found, f"it continues at index {head}, which does not exist"
            found.append(head)
            if embedded > most:
                return found, f"a block of it has {embedded} entries, more than the {most} that fit"
            found += view[at + 1 : at + 1 + embedded]
            head, embedded = view[at], most
        return found, "it does not end" if head != LIST_END else ""

    def bitmap_count(self, span: Span) -> int:
        """Count the free blocks in the bitmap of a span that has one."""
        at = span.record * SPAN + BITMAP * WORD
        bits = int.from_bytes(self.data[at : at + BITMAP_BITS // 8], "little")
        return bin(bits & (1 << span.blocks) - 1).count("1")

    def with_bitmap(self) -> Iterator[Span]:
        """Yield the spans whose free blocks are in a bitmap."""
        least = self._place.layout.least_bitmap
        return (span for span in self.found if span.number and span.blocks > 1 and span.size >= least)


def _free_problem(span: Span, found: int, why: str) -> Problem:
    """Make the problem of a span's free list. `why` is the reason why the list ended early. It is
    "" if only the numbers differ, as they do for a moment while a thread frees a block."""
    what = f"span at {span.start:#x}, {span.blocks:,} blocks of {span.size}"
    text = f"{what}: {found:,} on its free list, {span.allocated:,} not free by its count"
    return Problem(span.address, f"{text}; {why}" if why else text, bool(why) or found + span.allocated > span.blocks)
