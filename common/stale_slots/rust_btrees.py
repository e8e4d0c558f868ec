"""Slots of Rust's BTreeMaps and BTreeSets behind the entries of each node.

Source: std 1.95 library/alloc/src/collections/btree/node.rs. A map is {root, height, number of
entries}. A node has the parent, arrays of 11 keys and 11 values, and two numbers of 16 bits (its
index in the parent, and its entries); an internal one also 12 edges to nodes. rustc puts the parent
first, and both numbers into the last word before the edges.

A map is recognised only if each node's parent and index lead back, and the entries of all nodes are
as many as the map says. How key and value share the words of an entry is not written down. A column
of words that ascends through the whole map shows it; otherwise only those words are stale that are
so however they are shared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.stale_slots.heap_memory import HeapBlock, HeapMemory, Words
from findleaks.target.base import Range
from findleaks.target.ranges import intersection, merge_ranges
from findleaks.value_classes import NamedTuple

CAPACITY = 11  # entries of a node
EDGES = CAPACITY + 1
HIGHEST = 16  # levels of edges; a map of 5 entries a node has fewer
MAX_NODES = 1 << 15  # of all maps
MAX_WORDS = 64  # words of an entry
MOST_SPLIT = 8  # words of an entry of which it is tried how they are shared
MAX_NODE = (2 + CAPACITY * MAX_WORDS + EDGES) * 16  # bytes of a node's block


class _Node(NamedTuple):
    """A node: its words, and its number of entries."""

    start: int
    words: Sequence[int]
    entries: int


class _Shape(NamedTuple):
    """The word at which the edges begin, the words of an entry, and how far to shift the word in
    front of the edges for the index in the parent, and for the number of entries."""

    edges: int
    entry: int
    index_at: int
    entries_at: int


def stale_slots(memory: HeapMemory, words: Words) -> Iterator[Range]:
    """Bytes of entries and edges that are in no map any more; heads are among these words."""
    if memory.size != 8:
        return
    piece, addresses, values = words
    size = memory.size
    base = -piece.address % size
    everything = memory.arch.unpack(bytes(piece.data[base : base + (len(piece.data) - base) // size * size]))
    begin, last = piece.address + base, len(everything) - 3
    for address, root in zip(addresses, values):
        at = (address - begin) // size
        if at <= last and 0 < everything[at + 1] <= HIGHEST and CAPACITY < everything[at + 2] <= MAX_NODES * CAPACITY:
            yield from _of_map(memory, root, everything[at + 1], everything[at + 2])


def _of_map(memory: HeapMemory, root: int, height: int, length: int) -> Iterator[Range]:
    """Bytes of entries and edges that are in the map no more. Nothing unless there is a map with
    this root, height and number of entries."""
    block = memory.block_at(root)
    words = memory.contents(block) if block is not None and block.size <= MAX_NODE else ()
    if block is None or not words or words[0]:  # the root has no parent
        return
    for shape in _shapes(memory, words):
        nodes = _walk(memory, block, shape, height, length)
        if nodes is not None:
            size = (shape.edges + EDGES) * memory.size
            if not any(memory.is_busy(Range(node.start, node.start + size)) for level in nodes for node in level):
                yield from _behind(memory, nodes, shape)
            return


def _shapes(memory: HeapMemory, words: Sequence[int]) -> Iterator[_Shape]:
    """The shapes that the root's first two children confirm. `words`: of the root."""
    for edges in range(len(words) - EDGES, max(len(words) - EDGES - 4, len(words) * 3 // 4 - EDGES, 2), -1):
        entry, odd = divmod(edges - 2, CAPACITY)
        children = [memory.block_at(one) for one in words[edges : edges + 2]]
        if odd or not 0 < entry <= MAX_WORDS or None in children:
            continue
        numbers = [(memory.words(one.start, edges) or (0,) * edges)[edges - 1] for one in children if one is not None]
        for index, entries in ((0, 16), (16, 0), (32, 48), (48, 32)):
            if [number >> index & 0xFFFF for number in numbers] == [0, 1] and words[edges - 1] >> entries & 0xFFFF in range(1, EDGES):
                yield _Shape(edges, entry, index, entries)


def _walk(memory: HeapMemory, root: HeapBlock, shape: _Shape, height: int, length: int) -> Optional[list[list[_Node]]]:
    """The nodes by level, from the root on; None unless all is as it must be."""
    first = _node(memory, root.start, shape, height)
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
                    child = _node(memory, node.words[shape.edges + index], shape, level - 1)
                    if child is None or child.words[0] != node.start or child.words[shape.edges - 1] >> shape.index_at & 0xFFFF != index:
                        return None
                    below.append(child)
            levels.append(below)
    return levels if total == length else None


def _node(memory: HeapMemory, start: int, shape: _Shape, level: int) -> Optional[_Node]:
    memory.nodes += 1
    block = memory.block_at(start) if memory.nodes <= MAX_NODES else None
    needed = shape.edges + (EDGES if level else 0)
    words = memory.words(start, needed) if block is not None and block.size >= needed * memory.size else None
    entries = words[shape.edges - 1] >> shape.entries_at & 0xFFFF if words is not None else 0
    return _Node(start, words, entries) if words is not None and 0 < entries <= CAPACITY else None


def _behind(memory: HeapMemory, levels: Sequence[Sequence[_Node]], shape: _Shape) -> Iterator[Range]:
    """What is behind the entries of each node, and behind its edges."""
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
    """Stale words of a node if `split` words of an entry are in the first of the two arrays."""
    second = 1 + CAPACITY * split
    first = Range(1 + entries * split, second)
    return merge_ranges([first, Range(second + entries * (entry - split), 1 + CAPACITY * entry)])


def _likely_splits(levels: Sequence[Sequence[_Node]], shape: _Shape) -> list[int]:
    """How many words of an entry may be in the first array: each number with which a column of one
    of the arrays ascends through the whole map, as keys do; all if there is none, or no proof."""
    entry = shape.entry
    found: list[int] = []
    for split in range(entry + 1) if entry <= MOST_SPLIT and sum(len(nodes) for nodes in levels) > 2 else ():
        second = 1 + CAPACITY * split
        columns = [*((1 + at, split) for at in range(split)), *((second + at, entry - split) for at in range(entry - split))]
        if any(_ascends(levels, shape, first, stride) for first, stride in columns):
            found.append(split)
    return found or list(range(entry + 1))


def _ascends(levels: Sequence[Sequence[_Node]], shape: _Shape, first: int, stride: int) -> bool:
    """Whether the words from `first` on, one in `stride`, ascend through the map, as numbers with
    or without a sign."""
    for flip in (0, 1 << 63):
        before = -1
        for word in _in_order(levels, shape, first, stride):
            if word ^ flip <= before:
                break
            before = word ^ flip
        else:
            return True
    return False


def _in_order(levels: Sequence[Sequence[_Node]], shape: _Shape, first: int, stride: int) -> Iterator[int]:
    """A word of each entry, in the map's order."""
    below = [iter(nodes) for nodes in levels]

    def descend(level: int) -> Iterator[int]:
        node = next(below[level])
        for index in range(node.entries + 1):
            if level < len(levels) - 1:
                yield from descend(level + 1)
            if index < node.entries:
                yield node.words[first + index * stride]

    return descend(0)
