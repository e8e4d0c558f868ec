"""Slots of Rust's channels whose messages were received.

Sources: std 1.95 library/std/src/sync/mpmc/list.rs, array.rs and utils.rs (std has these since
1.67); crossbeam-channel 0.5 src/flavors/list.rs and array.rs are their origin. A channel is a block
of its own (counter.rs). Head and tail are padded to 128 bytes each (CachePadded on x86-64, AArch64
and PowerPC64), to which the block is aligned. Fields that rustc may reorder are found by their
contents.

A channel is recognised only if the state or stamp of every slot that is looked at is the one that
head and tail imply. One that a thread is about to change is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Optional

from findleaks.stale_slots.heap_memory import HeapBlock, HeapMemory, request_sizes
from findleaks.target.base import Range
from findleaks.target.ranges import intersection, merge_ranges
from findleaks.value_classes import NamedTuple

LINE = 128  # bytes of a cache line that head and tail are padded to
LEAST, GREATEST = 3 * LINE, 8 * LINE  # usable bytes of a channel's block
MAX_CHANNELS = 100_000  # blocks of such sizes that are examined; with more, none is
WRITE, READ = 1, 2  # states of a list's slot
LAP, CAPACITY = 32, 31  # indices a block of a list takes, and its slots
MAX_BLOCKS = 1 << 16  # blocks of a list
MAX_BUFFER = 1 << 26  # bytes of an array
LONG = 16  # fewest messages that went through a channel for one, whose stamp is recognised by them


class _Span(NamedTuple):
    """Messages by position: received before `head`, not sent from `tail` on."""

    head: int
    tail: int


class _Layout(NamedTuple):
    """Slots of `size` bytes from offset `base` of a block on. The state or stamp is the first word
    of a slot, or the last one (`last`); the others are the message."""

    size: int
    base: int
    last: bool

    def message(self, block: HeapBlock, slot: int, word: int) -> Range:
        begin = block.start + self.base + slot * self.size
        return Range(begin, begin + self.size - word) if self.last else Range(begin + word, begin + self.size)


def _messages(layouts: Sequence[_Layout], slots: Sequence[tuple[HeapBlock, int]], word: int) -> Iterator[Range]:
    """Bytes that are messages of these slots by every one of the layouts."""
    found = [merge_ranges(layout.message(block, slot, word) for block, slot in slots) for layout in layouts]
    for other in found[1:]:
        found[0] = intersection(found[0], other)
    yield from found[0] if found else ()


def stale_slots(memory: HeapMemory) -> Iterator[Range]:
    """Bytes of messages that are in no channel any more."""
    if memory.size != 8:
        return
    indices = memory.blocks.of_sizes(LEAST, GREATEST, MAX_CHANNELS + 1)
    if len(indices) > MAX_CHANNELS:
        return
    for number, index in enumerate(indices):
        if number % 1024 == 0:
            memory.poll()
        start = memory.blocks.address(index)
        if start % LINE == 0:
            words = memory.contents(HeapBlock(start, memory.blocks.size(index)))
            if words:
                yield from _list_slots(memory, words)
                yield from _array_slots(memory, words)


def _list_slots(memory: HeapMemory, words: Sequence[int]) -> Iterator[Range]:
    """Of an unbounded channel, a list of blocks with 31 slots each. `words`: of its block."""
    line = LINE // memory.size
    for index, block in ((0, 1), (1, 0)):
        first, last = memory.block_at(words[block]), memory.block_at(words[line + block])
        # Bit 0 marks a channel that is disconnected, or a head that is not in the last block.
        span = _Span(words[index] >> 1, words[line + index] >> 1)
        if (
            first is None
            or last is None
            or not 0 <= span.tail - span.head < MAX_BLOCKS * LAP
            or CAPACITY in (span.head % LAP, span.tail % LAP)
        ):
            continue
        ends = {first: span.head // LAP, last: span.tail // LAP}
        known = [set(_list_layouts(memory, block, span, number)) for block, number in ends.items()]
        layouts = [layout for layout in set.intersection(*known) if _linked(memory, first, last, span, layout)]
        # What is not sent yet is zeros (Box::new_zeroed).
        received = [(first, slot) for slot in range(span.head % LAP)]
        yield from _messages(layouts, received, memory.size)


def _list_layouts(memory: HeapMemory, block: HeapBlock, span: _Span, number: int) -> Iterator[_Layout]:
    """The layouts by which each slot of block `number` of a list has the state that `span` implies.
    rustc 1.95 puts the link behind the slots."""
    words, word = memory.contents(block), memory.size
    positions = range(number * LAP, number * LAP + CAPACITY)
    expected = [WRITE | READ if at < span.head else WRITE if at < span.tail else 0 for at in positions]
    for size in request_sizes(block.size - word, CAPACITY, word):
        each = size // word
        for base, last in product((0, 1), (True, False)) if each > 1 else ():
            at = base + (each - 1 if last else 0)
            if list(words[at : at + each * CAPACITY : each]) == expected:
                yield _Layout(size, base * word, last)


def _linked(memory: HeapMemory, first: HeapBlock, last: HeapBlock, span: _Span, layout: _Layout) -> bool:
    """Whether the last block follows the first at the distance that `span` implies, and none
    follows it."""
    at: Optional[int] = first.start
    link = 0 if layout.base else CAPACITY * layout.size
    for _ in range(span.tail // LAP - span.head // LAP):
        at = memory.word((at or 0) + link)
    return at == last.start and memory.word(at + link) == 0


def _array_slots(memory: HeapMemory, words: Sequence[int]) -> Iterator[Range]:
    """Of a bounded channel, an array of slots. `words`: of its block."""
    line = LINE // memory.size
    rest = words[2 * line :]
    there = set(rest)
    for capacity in {one for one in there if 0 < one < 1 << 32}:
        mark = 1 << capacity.bit_length()  # the next power of two above the capacity
        sent = (words[line] & ~mark) >= (1 if capacity > 1 else LONG * 2 * mark)
        if mark not in there or 2 * mark not in there or capacity * memory.size > MAX_BUFFER or not sent or rest.count(capacity) < 2:
            continue
        stamps = _expected_stamps(words[0], words[line] & ~mark, capacity, mark)
        for address in {*rest} if stamps else ():
            block = memory.block_at(address)
            if block is not None and block.size <= MAX_BUFFER:
                # A slot to be written next has its position; one with a message, one more.
                empty = [(block, slot) for slot, stamp in enumerate(stamps) if stamp & (mark - 1) == slot]
                yield from _messages(list(_array_layouts(memory, block, stamps)), empty, memory.size)


def _expected_stamps(head: int, tail: int, capacity: int, mark: int) -> list[int]:
    """The stamp of each slot of an array; [] if head and tail belong to none of this capacity. A
    position is an index, and above the mark's bit, the lap."""
    lap = 2 * mark
    first, last = head % lap, tail % lap
    count = (tail // lap - head // lap) * capacity + last - first
    if first >= capacity or last >= capacity or not 0 <= count <= capacity:
        return []
    made = []
    for slot in range(capacity):
        if (slot - first) % capacity < count:  # holds a message
            made.append(head - first + (lap if slot < first else 0) + slot + 1)
        else:
            made.append(tail - last + (lap if slot < last else 0) + slot)
    return made


def _array_layouts(memory: HeapMemory, block: HeapBlock, stamps: list[int]) -> Iterator[_Layout]:
    """The layouts by which all stamps are as expected."""
    words, word, count = memory.contents(block), memory.size, len(stamps)
    for size in request_sizes(block.size, count, word):
        each = size // word
        for last in (True, False) if each > 1 else ():
            if list(words[each - 1 if last else 0 : each * count : each]) == stamps:
                yield _Layout(size, 0, last)
