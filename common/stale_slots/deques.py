"""Slots of std::deque outside its elements, at both ends.

libstdc++ (GCC 12 bits/stl_deque.h, _Deque_impl_data and _Deque_iterator): a deque is {map, size of
the map, start, finish}; an iterator is {current, first, last, node}. The map is an array of
pointers to chunks of 512 bytes, or of one element if that is larger. `current` of `start` is the
first element; `current` of `finish` is after the last. Words of the map before the first chunk and
after the last one refer to freed chunks.

A deque is recognised by the ten words of its head and the words of its map. No debug information
is needed. The head of libc++'s deque does not contain the size of an element, so libc++'s deques
are not read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from findleaks.stale_slots.heap_memory import HeapMemory, HeapPointers, SequenceStorage, wastes_little
from findleaks.target.base import Range

HEAD = 10  # words
POINTERS = HEAD - 1  # number of words of a head that point into the heaps
CHUNK = 512  # minimum size of a chunk in bytes
LEAST_MAP = 8  # chunks in the smallest map
MAX_MAP = 1 << 20  # chunks in the largest map


def find_deques(memory: HeapMemory, words: HeapPointers) -> Iterator[SequenceStorage]:
    """Yield deques with heads among these words. Their first block is the map.

    The head of a destroyed deque may still look intact if another deque now uses its blocks.
    Therefore the caller must check that no other word refers to the map."""
    _, addresses, values = words
    for at in range(len(addresses) - POINTERS + 1):
        # All of the ten words but the second are pointers.
        if addresses[at + POINTERS - 1] - addresses[at] == POINTERS * memory.size and addresses[at + 1] - addresses[at] == 2 * memory.size:
            found = _read_deque(memory, addresses[at], values[at])
            if found is not None:
                yield found


def _read_deque(memory: HeapMemory, head: int, table: int) -> Optional[SequenceStorage]:
    """Return the deque at `head` with its map at `table`; None if there is none."""
    size = memory.size
    words, block = memory.words(head, HEAD), memory.block_at(table)
    if words is None or block is None or words[0] != table:
        return None
    _, capacity, current, first, last, node, current_end, first_end, last_end, node_end = words
    chunk = last - first
    sound = (
        LEAST_MAP <= capacity <= MAX_MAP
        and wastes_little(block.size, capacity * size, size)
        and table <= node <= node_end < table + capacity * size
        and (node - table) % size == (node_end - table) % size == 0
        and chunk >= CHUNK
        and last_end - first_end == chunk
        and first <= current < last
        and first_end <= current_end < last_end
        and (node < node_end or current <= current_end)
    )
    chunks = _read_map(memory, table, capacity) if sound else None
    if chunks is None:
        return None
    used = chunks[(node - table) // size : (node_end - table) // size + 1]
    if used[0] != first or used[-1] != first_end or len(set(used)) != len(used) or not all(_is_chunk(memory, one, chunk) for one in used):
        return None
    blocks = [Range(table, table + capacity * size), *(Range(one, one + chunk) for one in used)]
    unused = [Range(table, node), Range(node_end + size, table + capacity * size), Range(first, current), Range(current_end, last_end)]
    return SequenceStorage(Range(head, head + HEAD * size), blocks, unused)


def _read_map(memory: HeapMemory, table: int, capacity: int) -> Optional[tuple[int, ...]]:
    """Return the words of the map; None if it cannot be a map."""
    memory.poll()
    return memory.words(table, capacity)


def _is_chunk(memory: HeapMemory, start: int, size: int) -> bool:
    """Return whether `start` is the start of a block that was requested for a chunk of `size`
    bytes."""
    block = memory.block_at(start)
    return block is not None and wastes_little(block.size, size, memory.size)
