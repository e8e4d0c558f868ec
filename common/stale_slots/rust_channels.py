"""Slots of Rust's channels whose messages were received.

Sources: std 1.95 library/std/src/sync/mpmc/list.rs, array.rs and utils.rs (in std since 1.67);
their origin is crossbeam-channel 0.5 src/flavors/list.rs and array.rs. Each channel is in a
separate block (counter.rs). Head and tail are padded to 128 bytes each (CachePadded on x86-64,
AArch64 and PowerPC64), and the block is aligned to 128 bytes. Fields that rustc may reorder are
found by their contents.

A channel is recognised only if every examined slot has the state or stamp that follows from head
and tail. Therefore a channel is not recognised while a thread is changing it."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Optional

from findleaks.stale_slots.heap_memory import HeapBlock, HeapMemory, list_element_sizes
from findleaks.target.base import Range
from findleaks.target.ranges import intersection, merge_ranges, subtract
from findleaks.value_classes import NamedTuple

LINE = 128  # bytes of a cache line, to which head and tail are padded
LEAST, GREATEST = 3 * LINE, 8 * LINE  # usable bytes of a channel's block
# Maximum number of blocks of such sizes; if there are more, none is examined
MAX_CHANNELS = 100_000
WRITE, READ = 1, 2  # states of a list's slot
LAP, CAPACITY = 32, 31  # a block of a list uses LAP indices, and has CAPACITY slots
MAX_BLOCKS = 1 << 16  # maximum number of blocks of a list
MAX_BUFFER = 1 << 26  # maximum number of bytes of an array
LONG = 16  # least number of messages through a channel whose stamps alone identify it


class _MessagePositions(NamedTuple):
    """Positions of messages: those before `head` were received, and those from `tail` on were not
    sent yet."""

    head: int
    tail: int


class _SlotLayout(NamedTuple):
    """Slots of `size` bytes from offset `base` of a block on.
    The state or stamp is the first word of a slot, or if `last` is set, the last word. The other
    words are the message."""

    size: int
    base: int
    last: bool

    def message(self, block: HeapBlock, slot: int, word: int) -> Range:
        begin = block.start + self.base + slot * self.size
        return Range(begin, begin + self.size - word) if self.last else Range(begin + word, begin + self.size)


def _find_messages(layouts: Sequence[_SlotLayout], slots: Sequence[tuple[HeapBlock, int]], word: int) -> Iterator[Range]:
    """Yield the bytes that are part of a message in these slots in every one of the layouts."""
    found = [merge_ranges(layout.message(block, slot, word) for block, slot in slots) for layout in layouts]
    for other in found[1:]:
        found[0] = intersection(found[0], other)
    yield from found[0] if found else ()


def find_stale_messages(memory: HeapMemory) -> Iterator[Range]:
    """Yield the bytes of messages that are no longer in a channel."""
    if memory.size != 8:
        return
    indices = memory.blocks.of_sizes(LEAST, GREATEST, MAX_CHANNELS + 1)
    if len(indices) > MAX_CHANNELS:
        return
    columns = memory.blocks.columns_of(array("I", indices))
    aligned: list[HeapBlock] = []
    for start, end in subtract([Range(memory.low, memory.high)], memory.managed):
        part = slice(bisect_left(columns.address, start), bisect_left(columns.address, end))
        aligned += [HeapBlock(*one) for one in zip(columns.address[part], columns.size[part]) if not one[0] % LINE]
    for number, block in enumerate(aligned):
        if number % 1024 == 0:
            memory.poll()
        words = memory.contents(block)
        if words:
            yield from _find_in_list(memory, words)
            yield from _find_in_array(memory, words)


def _find_in_list(memory: HeapMemory, words: Sequence[int]) -> Iterator[Range]:
    """Yield the bytes of received messages in an unbounded channel, which is a list of blocks with
    31 slots each. `words` are the words of the channel's block."""
    line = LINE // memory.size
    for index, block in ((0, 1), (1, 0)):
        # Bit 0 marks a disconnected channel, or a head that is not in the last block.
        span = _MessagePositions(words[index] >> 1, words[line + index] >> 1)
        if not 0 <= span.tail - span.head < MAX_BLOCKS * LAP or CAPACITY in (span.head % LAP, span.tail % LAP):
            continue
        first, last = memory.block_at(words[block]), memory.block_at(words[line + block])
        if first is None or last is None:
            continue
        ends = {first: span.head // LAP, last: span.tail // LAP}
        known = [set(_list_layouts(memory, block, span, number)) for block, number in ends.items()]
        layouts = [layout for layout in set.intersection(*known) if _is_linked(memory, first, last, span, layout)]
        # Messages that were not sent yet are zeros (Box::new_zeroed).
        received = [(first, slot) for slot in range(span.head % LAP)]
        yield from _find_messages(layouts, received, memory.size)


def _list_layouts(memory: HeapMemory, block: HeapBlock, span: _MessagePositions, number: int) -> Iterator[_SlotLayout]:
    """Yield the layouts in which each slot of block `number` of a list has the state that follows
    from `span`.
    rustc 1.95 places the link after the slots."""
    words, word = memory.contents(block), memory.size
    positions = range(number * LAP, number * LAP + CAPACITY)
    expected = [WRITE | READ if at < span.head else WRITE if at < span.tail else 0 for at in positions]
    for size in list_element_sizes(block.size - word, CAPACITY, word):
        each = size // word
        for base, last in product((0, 1), (True, False)) if each > 1 else ():
            at = base + (each - 1 if last else 0)
            if list(words[at : at + each * CAPACITY : each]) == expected:
                yield _SlotLayout(size, base * word, last)


def _is_linked(memory: HeapMemory, first: HeapBlock, last: HeapBlock, span: _MessagePositions, layout: _SlotLayout) -> bool:
    """Return whether the number of blocks from the first to the last block is the one that follows
    from `span`, and no block follows the last one."""
    at: Optional[int] = first.start
    link = 0 if layout.base else CAPACITY * layout.size
    for _ in range(span.tail // LAP - span.head // LAP):
        at = memory.word((at or 0) + link)
    return at == last.start and memory.word(at + link) == 0


def _find_in_array(memory: HeapMemory, words: Sequence[int]) -> Iterator[Range]:
    """Yield the bytes of received messages in a bounded channel, which is an array of slots.
    `words` are the words of the channel's block."""
    line = LINE // memory.size
    rest = words[2 * line :]
    there = set(rest)
    # The channel stores the mark, a power of two, and one lap, which is twice the mark. Few other
    # blocks contain such a pair.
    marks = [one for one in there if not one & (one - 1) and 2 * one in there and one]
    for capacity in {one for one in there if 0 < one < 1 << 32} if marks else ():
        mark = 1 << capacity.bit_length()  # the next power of two above the capacity
        sent = (words[line] & ~mark) >= (1 if capacity > 1 else LONG * 2 * mark)
        if mark not in marks or capacity * memory.size > MAX_BUFFER or not sent or rest.count(capacity) < 2:
            continue
        stamps = _expected_stamps(words[0], words[line] & ~mark, capacity, mark)
        for address in {*rest} if stamps else ():
            block = memory.block_at(address)
            if block is not None and block.size <= MAX_BUFFER:
                # The stamp of a slot to be written next is its position; with a message, it is one
                # more.
                empty = [(block, slot) for slot, stamp in enumerate(stamps) if stamp & (mark - 1) == slot]
                yield from _find_messages(list(_array_layouts(memory, block, stamps)), empty, memory.size)


def _expected_stamps(head: int, tail: int, capacity: int, mark: int) -> list[int]:
    """Return the stamp that each slot of an array must have; [] if head and tail do not fit this
    capacity.
    The bits of a position below `mark` are an index; the bits above it are the lap."""
    # Example: capacity 3, mark 4, one lap 8. Head 9 is index 1 in lap 1; if tail is 10, slot 1
    # holds a message and has the stamp 10.
    lap = 2 * mark
    first, last = head % lap, tail % lap
    count = (tail // lap - head // lap) * capacity + last - first
    if first >= capacity or last >= capacity or not 0 <= count <= capacity:
        return []
    made = []
    for slot in range(capacity):
        if (slot - first) % capacity < count:  # the slot holds a message
            made.append(head - first + (lap if slot < first else 0) + slot + 1)
        else:
            made.append(tail - last + (lap if slot < last else 0) + slot)
    return made


def _array_layouts(memory: HeapMemory, block: HeapBlock, stamps: list[int]) -> Iterator[_SlotLayout]:
    """Yield the layouts in which all stamps are as expected."""
    words, word, count = memory.contents(block), memory.size, len(stamps)
    for size in list_element_sizes(block.size, count, word):
        each = size // word
        for last in (True, False) if each > 1 else ():
            if list(words[each - 1 if last else 0 : each * count : each]) == stamps:
                yield _SlotLayout(size, 0, last)
