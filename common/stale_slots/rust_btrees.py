"""Slots after the entries of each node in Rust's BTreeMap and BTreeSet.

Source: std 1.95 library/alloc/src/collections/btree/node.rs. A map is {root, height, number of
entries}. A node contains the parent, arrays of 11 keys and 11 values, and two 16-bit numbers (its
index in the parent, and the number of its entries); an internal node also contains 12 edges to
nodes. rustc places the parent first, and both numbers in the last word before the edges.

A map is recognised only if the parent and index of each node lead back to the node, and the entries
of all nodes add up to the map's number. Memory does not show how many words of an entry are the key
and how many are the value. If a column of words ascends through the whole map, it belongs to the
key. Otherwise, only words that are stale for every possible division are reported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.stale_slots.heap_memory import HeapBlock, HeapMemory, HeapPointers
from findleaks.target.base import Range
from findleaks.target.ranges import intersection, merge_ranges
from findleaks.value_classes import NamedTuple

CAPACITY = 11  # entries of a node
EDGES = CAPACITY + 1
HIGHEST = 16  # maximum number of levels of edges: a map with 5 entries in each node has fewer
MAX_NODES = 1 << 15  # maximum number of nodes of all maps together
MAX_WORDS = 64  # maximum number of words of an entry
MOST_SPLIT = 8  # maximum number of words of an entry for which all divisions are tried
MAX_NODE = (2 + CAPACITY * MAX_WORDS + EDGES) * 16  # maximum number of bytes of a node's block


class _Node(NamedTuple):
    """A node: its words, and its number of entries."""

    start: int
    words: Sequence[int]
    entries: int


class _NodeLayout(NamedTuple):
    """The layout of a node.
    `edges` is the index of the first edge, `entry` the number of words of an entry. The word before
    the edges contains two numbers, the index in the parent and the number of entries, which are
    extracted by shifting."""

    edges: int
    entry: int
    index_at: int
    entries_at: int


def find_stale_entries(memory: HeapMemory, words: HeapPointers) -> Iterator[Range]:
    """Yield the bytes of entries and edges that are no longer in a map. The heads of the maps are
    among these words."""
    if memory.size != 8:
        return
    piece, addresses, values = words
    size = memory.size
    base = -piece.address % size
    everything = memory.arch.words(piece.data[base : base + (len(piece.data) - base) // size * size])
    begin, end = piece.address + base, piece.address + base + len(everything) * size
    # Height and length are not pointers, so the next pointer is at least three words away.
    for address, root, after in zip(addresses, values, [*addresses[1:], end]):
        if after - address > 2 * size:
            at = (address - begin) // size
            if 0 < everything[at + 1] <= HIGHEST and CAPACITY < everything[at + 2] <= MAX_NODES * CAPACITY:
                yield from _find_in_map(memory, root, everything[at + 1], everything[at + 2])


def _find_in_map(memory: HeapMemory, root: int, height: int, length: int) -> Iterator[Range]:
    """Yield the bytes of entries and edges that are no longer in the map.
    Yield nothing unless a map has this root, height and number of entries."""
    block = memory.block_at(root)
    words = memory.contents(block) if block is not None and block.size <= MAX_NODE else ()
    if block is None or not words or words[0]:  # the root has no parent
        return
    for shape in _find_layouts(memory, words):
        nodes = _walk_levels(memory, block, shape, height, length)
        if nodes is not None:
            size = (shape.edges + EDGES) * memory.size
            if not any(memory.is_busy(Range(node.start, node.start + size)) for level in nodes for node in level):
                yield from _find_unused(memory, nodes, shape)
            return


def _find_layouts(memory: HeapMemory, words: Sequence[int]) -> Iterator[_NodeLayout]:
    """Yield the layouts that are confirmed by the first two children of the root. `words` are the
    words of the root."""
    for edges in range(len(words) - EDGES, max(len(words) - EDGES - 4, len(words) * 3 // 4 - EDGES, 2), -1):
        entry, odd = divmod(edges - 2, CAPACITY)
        children = [memory.block_at(one) for one in words[edges : edges + 2]]
        if odd or not 0 < entry <= MAX_WORDS or None in children:
            continue
        numbers = [(memory.words(one.start, edges) or (0,) * edges)[edges - 1] for one in children if one is not None]
        for index, entries in ((0, 16), (16, 0), (32, 48), (48, 32)):
            if [number >> index & 0xFFFF for number in numbers] == [0, 1] and words[edges - 1] >> entries & 0xFFFF in range(1, EDGES):
                yield _NodeLayout(edges, entry, index, entries)


def _walk_levels(memory: HeapMemory, root: HeapBlock, shape: _NodeLayout, height: int, length: int) -> Optional[list[list[_Node]]]:
    """Return the nodes by level, from the root on. None unless every check passes."""
    first = _read_node(memory, root.start, shape, height)
    levels = [[first]] if first is not None else []
    total = 0
    for level in range(height, -1, -1):
        if not levels:
            return None
        total += sum(node.entries for node in levels[-1])
        if total > length:
            return None
        memory.poll()
        if level:
            below = []
            for node in levels[-1]:
                for index in range(node.entries + 1):
                    child = _read_node(memory, node.words[shape.edges + index], shape, level - 1)
                    if child is None or child.words[0] != node.start or child.words[shape.edges - 1] >> shape.index_at & 0xFFFF != index:
                        return None
                    below.append(child)
            levels.append(below)
    return levels if total == length else None


def _read_node(memory: HeapMemory, start: int, shape: _NodeLayout, level: int) -> Optional[_Node]:
    memory.nodes += 1
    block = memory.block_at(start) if memory.nodes <= MAX_NODES else None
    needed = shape.edges + (EDGES if level else 0)
    words = memory.words(start, needed) if block is not None and block.size >= needed * memory.size else None
    entries = words[shape.edges - 1] >> shape.entries_at & 0xFFFF if words is not None else 0
    return _Node(start, words, entries) if words is not None and 0 < entries <= CAPACITY else None


def _find_unused(memory: HeapMemory, levels: Sequence[Sequence[_Node]], shape: _NodeLayout) -> Iterator[Range]:
    """Yield the bytes after the entries of each node, and after its edges."""
    splits = _likely_splits(levels, shape)
    for level, nodes in enumerate(levels):
        for node in nodes:
            found = _stale_words(node.entries, shape.entry, splits[0])
            for split in splits[1:]:
                found = intersection(found, _stale_words(node.entries, shape.entry, split))
            if level < len(levels) - 1:
                found = [*found, Range(shape.edges + node.entries + 1, shape.edges + EDGES)]
            for first, last in found:
                if any(node.words[first:last]):
                    yield Range(node.start + first * memory.size, node.start + last * memory.size)


def _stale_words(entries: int, entry: int, split: int) -> list[Range]:
    """Return the stale words of a node, if the first of the two arrays contains `split` words of
    each entry."""
    second = 1 + CAPACITY * split
    first = Range(1 + entries * split, second)
    return merge_ranges([first, Range(second + entries * (entry - split), 1 + CAPACITY * entry)])


def _likely_splits(levels: Sequence[Sequence[_Node]], shape: _NodeLayout) -> list[int]:
    """Return the possible numbers of words of an entry that are in the first array.
    A number is likely if, with this number, a column of one of the arrays ascends through the whole
    map, as keys do. If no number is likely, return all numbers."""
    # Example: an entry of 3 words is divided as 1 + 2, 2 + 1, 0 + 3 or 3 + 0. If the words 0, 1, 2
    # … of the first array ascend, the key is one word: 1 + 2.
    entry = shape.entry
    found: list[int] = []
    for split in range(entry + 1) if entry <= MOST_SPLIT and sum(len(nodes) for nodes in levels) > 2 else ():
        second = 1 + CAPACITY * split
        columns = [*((1 + at, split) for at in range(split)), *((second + at, entry - split) for at in range(entry - split))]
        if any(_ascends(levels, shape, first, stride) for first, stride in columns):
            found.append(split)
    return found or list(range(entry + 1))


def _ascends(levels: Sequence[Sequence[_Node]], shape: _NodeLayout, first: int, stride: int) -> bool:
    """Whether every `stride`th word from `first` on ascends through the map, as signed or unsigned
    numbers."""
    for flip in (0, 1 << 63):
        before = -1
        for word in _in_order(levels, shape, first, stride):
            if word ^ flip <= before:
                break
            before = word ^ flip
        else:
            return True
    return False


def _in_order(levels: Sequence[Sequence[_Node]], shape: _NodeLayout, first: int, stride: int) -> Iterator[int]:
    """Yield one word of each entry, in the order of the map."""
    below = [iter(nodes) for nodes in levels]

    def descend(level: int) -> Iterator[int]:
        node = next(below[level])
        for index in range(node.entries + 1):
            if level < len(levels) - 1:
                yield from descend(level + 1)
            if index < node.entries:
                yield node.words[first + index * stride]

    return descend(0)
