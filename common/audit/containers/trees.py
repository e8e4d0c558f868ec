"""Search trees whose nodes point to their parents: std::map, set, multimap and multiset.

libstdc++ (GCC 12 bits/stl_tree.h, _Rb_tree_node_base, _Rb_tree_header): nodes are {colour, parent, left, right, value}; the owner holds
{compare (8 bytes, mostly nothing), header: colour (red), root, leftmost, rightmost, node count}, and the root's parent is the header.
libc++ (LLVM 16 __tree): nodes are {left, right, parent, black, value}; the owner holds {leftmost, end node: root, size}, and the root's
parent is the end node.

The header points to the leftmost and rightmost nodes too, and each node to its parent: so no node dominates another, and what a tree
holds hangs from the owner's words alone.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple, Optional

from findleaks.audit.containers import LEAST, Container
from findleaks.audit.containers.reader import SLICE, Place, Reader

RED, BLACK = 0, 1

DEEPEST = 200
"""Levels of a tree: one of a billion nodes that were put in at random has some 130. What is deeper is a list with something beside."""

SAMPLE = 32
"""Nodes of a tree looked at to find which words lead to children."""


class Layout(NamedTuple):
    """Of a node, in words: which are its left and right children, its parent, and its colour; and how many of them to read."""

    left: int
    right: int
    parent: int
    colour: int
    words: int
    colour_mask: int


GNU = Layout(2, 3, 1, 0, 4, 0xFFFFFFFF)  # an enum: the four bytes behind it may hold anything
LLVM = Layout(0, 1, 2, 3, 4, 0xFF)  # a bool


def gnu_tree(reader: Reader, address: int) -> Optional[Container]:
    """libstdc++'s tree whose header's root pointer stands at `address`."""
    size = reader.size
    header = address - size
    words = reader.words(header, 5)
    if words is None or words[0] & GNU.colour_mask != RED or words[2] == header or words[3] == header:
        return None
    _, root, leftmost, rightmost, count = words
    if not (_points(reader, root, size, header) and _is_black(reader, root, GNU)):
        return None
    if not (_points(reader, leftmost, GNU.left * size, 0) and _points(reader, rightmost, GNU.right * size, 0)):
        return None
    nodes, problem = walk(reader, root, header, GNU)
    compare = header - size  # what std::less and any other empty class takes in front of the header
    made = Container("std::map or set", compare, header + 5 * size, len(nodes), told=count, nodes=nodes, problem=problem)
    return _ends_checked(made, leftmost, rightmost)


def llvm_tree(reader: Reader, address: int) -> Optional[Container]:
    """libc++'s tree whose head begins at `address` with the pointer to the leftmost node."""
    size = reader.size
    words = reader.words(address, 3)
    if words is None or words[0] == address + size:
        return None
    leftmost, root, count = words
    if not (_points(reader, root, LLVM.parent * size, address + size) and _is_black(reader, root, LLVM)):
        return None
    if not _points(reader, leftmost, LLVM.left * size, 0):
        return None
    nodes, problem = walk(reader, root, address + size, LLVM)
    made = Container("std::map or set", address, address + 3 * size, len(nodes), told=count, nodes=nodes, problem=problem)
    return _ends_checked(made, leftmost, leftmost)


def walk(reader: Reader, root: int, header: int, layout: Layout) -> tuple[array[int], str]:
    """The places of all nodes, level by level, and "" or what is damaged first.

    A node counts only where it points back to the one that led to it, which is why no damage can make this run in circles: a node has
    one parent, and is met once from each side of it.
    """
    nodes: array[int] = array("Q")
    level, parents, reds, problem = array("Q", [root]), array("Q", [header]), bytearray(1), ""
    while level and len(nodes) <= reader.most:
        below, above, next_reds = array("Q"), array("Q"), bytearray()
        for first in range(0, len(level), SLICE):
            reader.tell()
            some, theirs, red = (column[first : first + SLICE] for column in (level, parents, reds))
            columns, missing = reader.columns(some, 0, layout.words)
            back = columns[layout.parent]
            if missing or back != theirs:
                kept = [n for n, (a, b) in enumerate(zip(back, theirs)) if a == b]
                if len(kept) < len(some):
                    bad = next(n for n, (a, b) in enumerate(zip(back, theirs)) if a != b)
                    problem = problem or _wrong(some[bad], theirs[bad], back[bad], bad in missing)
                    some, red = array("Q", [some[n] for n in kept]), bytearray(red[n] for n in kept)
                    columns = [array("Q", [column[n] for n in kept]) for column in columns]
            nodes.extend(some)
            for node, a, b, colour, under_red in zip(some, columns[layout.left], columns[layout.right], columns[layout.colour], red):
                colour &= layout.colour_mask
                if colour > BLACK or (under_red and colour == RED) or (a and a == b):
                    problem = problem or _odd(node, a, b, colour)
                    b = 0 if a == b else b
                if a:
                    below.append(a)
                    above.append(node)
                    next_reds.append(colour == RED)
                if b:
                    below.append(b)
                    above.append(node)
                    next_reds.append(colour == RED)
        level, parents, reds = below, above, next_reds
    return nodes, problem


def _odd(node: int, left: int, right: int, colour: int) -> str:
    if left and left == right:
        return f"node {node:#x} has {left:#x} as both children"
    return f"node {node:#x} and its parent are both red" if colour == RED else f"node {node:#x} has colour {colour:#x}"


def _points(reader: Reader, node: int, offset: int, to: int) -> bool:
    """`node` lies in a block in use, and its word at `offset` is `to`."""
    return node % reader.size == 0 and reader.place(node) is not None and reader.word(node + offset) == to


def _is_black(reader: Reader, node: int, layout: Layout) -> bool:
    colour = reader.word(node + layout.colour * reader.size)
    return colour is not None and colour & layout.colour_mask == BLACK


def _wrong(node: int, parent: int, back: int, absent: bool) -> str:
    if absent:
        return f"node {node:#x} cannot be read"
    return f"node {node:#x} gives {back:#x} as its parent, but hangs from {parent:#x}"


def _ends_checked(made: Container, leftmost: int, rightmost: int) -> Optional[Container]:
    """A tree must hold the ends that its header names; and its own count must agree, or that is told."""
    if not made.problem and made.told != made.length:
        made.problem = f"it says that it has {made.told:,} nodes, but {made.length:,} hang in it"
    for end in (leftmost, rightmost):
        if not made.problem and end not in made.nodes:
            made.problem = f"its end {end:#x} does not hang in it"
    return made


def plain_tree(reader: Reader, address: int, place: Place, value: int) -> Optional[Container]:
    """A tree of nodes with two children each, and whatever else: as C programs make them (tsearch, GTree, left and right pointers). `value`
    at `address` leads to its root. The children are the first two words that lead from node to node, and never to one of them twice."""
    pair = _children_of(reader, place, value)
    if pair is None:
        return None
    nodes, level, seen = array("Q"), array("Q", [value]), {value}
    depth = 0
    while level:
        depth += 1
        if depth > DEEPEST:
            return None
        below: array[int] = array("Q")
        for first in range(0, len(level), SLICE):
            reader.tell()
            some = level[first : first + SLICE]
            for offset in pair:
                (column,), missing = reader.columns(some, offset, 1)
                if missing:
                    return None
                below.extend(word for word in column if word)
        nodes.extend(level)
        before = len(seen)
        seen.update(below)
        if len(seen) < before + len(below) or len(seen) > reader.most:
            return None  # it meets itself: no tree
        level = below
    if len(nodes) < 2 * LEAST:
        return None
    return Container("binary tree", address, address + reader.size, len(nodes), nodes=nodes)


def _children_of(reader: Reader, place: Place, value: int) -> Optional[tuple[int, int]]:
    """The offsets of two words that in some nodes from `value` on are 0 or lead to nodes like it, and in one of them both do."""
    size = reader.size
    count = min((place.size - place.offset) // size, 16)
    sample, columns = [value], list(range(count))
    seen, both = {value}, False
    for node in sample:
        words = reader.words(node, count)
        if words is None:
            return None
        columns = [n for n in columns if not words[n] or (words[n] not in seen and reader.alike(place, reader.place(words[n])))]
        if len(columns) < 2:
            return None
        used = [n for n in columns if words[n]][:2]
        both = both or len(used) == 2
        for n in used:
            if len(sample) < SAMPLE:
                seen.add(words[n])
                sample.append(words[n])
    varied = [n for n in columns if any((reader.word(node + n * size) or 0) for node in sample)][:2]
    return (varied[0] * size, varied[1] * size) if both and len(varied) == 2 else None
