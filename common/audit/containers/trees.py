"""Search trees whose nodes point to their parents: std::map, set, multimap and multiset.

libstdc++ (GCC 12 bits/stl_tree.h, _Rb_tree_node_base, _Rb_tree_header): a node is {colour, parent,
left, right, value}. The owner contains {compare (8 bytes, usually unused), header: colour (red),
root, leftmost, rightmost, node count}; the root's parent is the header.

libc++ (LLVM 16 __tree): a node is {left, right, parent, black, value}. The owner contains
{leftmost, end node: root, size}; the root's parent is the end node.

The header also points to the leftmost and rightmost nodes, and each node points to its parent.
Therefore no node dominates another, and only the owner's words retain the tree."""

from __future__ import annotations

from typing import Optional

from findleaks.audit.containers import LEAST, Container
from findleaks.audit.containers.reader import BlockPlace, ContainerReader
from findleaks.engine.trees import TreeLayout

RED, BLACK = 0, 1

DEEPEST = 200
"""Maximum number of levels of a binary tree.
A tree of a billion nodes that were inserted in random order has about 130 levels. A deeper one is a
list with side branches."""

COLOUR = 1
"""Bit of a child pointer that is not part of the address. glibc's tsearch and jemalloc's rb.h store
the colour of a node there."""

SAMPLE = 32  # nodes examined to find the words that point to children


GNU = TreeLayout(2, 3, 1, 0, 4, 4)  # colour is an enum; the padding after it may have any value
LLVM = TreeLayout(0, 1, 2, 3, 4, 1)  # colour is a bool


def recognise_gnu_tree(reader: ContainerReader, address: int) -> Optional[Container]:
    """Recognise libstdc++'s tree. `address`: that of the root pointer in the header."""
    size = reader.size
    header = address - size
    words = reader.words(header, 5)
    if words is None or reader.arch.leading(words[0], GNU.colour_bytes) != RED or words[2] == header or words[3] == header:
        return None
    _, root, leftmost, rightmost, count = words
    if not count:
        return None
    if not (_points_to(reader, root, size, header) and _is_black(reader, root, GNU)):
        return None
    if not (_points_to(reader, leftmost, GNU.left * size, 0) and _points_to(reader, rightmost, GNU.right * size, 0)):
        return None
    nodes, problem = reader.walk_tree(root, header, GNU, count)
    # The object std::less, or another empty class, is stored before the header
    compare = header - size
    made = Container("std::map or set", compare, header + 5 * size, len(nodes), recorded=count, nodes=nodes, problem=problem)
    return _check_ends(made, leftmost, rightmost)


def recognise_llvm_tree(reader: ContainerReader, address: int) -> Optional[Container]:
    """Recognise libc++'s tree. Its head begins at `address` with the pointer to the leftmost
    node."""
    size = reader.size
    words = reader.words(address, 3)
    if words is None or words[0] == address + size:
        return None
    leftmost, root, count = words
    if not (_points_to(reader, root, LLVM.parent * size, address + size) and _is_black(reader, root, LLVM)):
        return None
    if not _points_to(reader, leftmost, LLVM.left * size, 0):
        return None
    nodes, problem = reader.walk_tree(root, address + size, LLVM, count)
    made = Container("std::map or set", address, address + 3 * size, len(nodes), recorded=count, nodes=nodes, problem=problem)
    return _check_ends(made, leftmost, leftmost)


def _points_to(reader: ContainerReader, node: int, offset: int, to: int) -> bool:
    """Whether `node` is in a block in use, and its word at `offset` is `to`."""
    return node % reader.size == 0 and reader.place(node) is not None and reader.word(node + offset) == to


def _is_black(reader: ContainerReader, node: int, layout: TreeLayout) -> bool:
    colour = reader.word(node + layout.colour * reader.size)
    return colour is not None and reader.arch.leading(colour, layout.colour_bytes) == BLACK


def _check_ends(made: Container, leftmost: int, rightmost: int) -> Container:
    """Set `problem` if the tree does not contain the leftmost and rightmost nodes that its header
    names, or if the number of nodes differs from the header's."""
    if not made.problem and made.recorded != made.length:
        made.problem = f"its header counts {made.recorded:,} nodes, but {made.length:,} are linked"
    for end in (leftmost, rightmost):
        if not made.problem and end not in made.nodes:
            made.problem = f"its end {end:#x} is not linked"
    return made


def recognise_plain_tree(reader: ContainerReader, address: int, place: BlockPlace, value: int) -> Optional[Container]:
    """Recognise a tree whose nodes have two children and any other content, as C programs build
    (tsearch, GTree).
    `value` at `address` points to the root. The two child pointers are the first two words that
    lead only from node to node, and never twice to the same node."""
    pair = _find_children(reader, place, value)
    if pair is None:
        return None
    nodes = reader.walk_links([value], pair, reader.most, DEEPEST, COLOUR)
    if nodes is None or len(nodes) < 2 * LEAST:
        return None
    return Container("binary tree", address, address + reader.size, len(nodes), nodes=nodes)


def _find_children(reader: ContainerReader, place: BlockPlace, value: int) -> Optional[tuple[int, int]]:
    """Return the offsets of the two child pointers; None if there are none.
    In each node of a sample, both words must be 0 or point to similar nodes. In at least one node,
    both must be set."""
    # A word that points elsewhere in any node is removed from `columns`. Example: in nodes {key,
    # left, right}, the key points to no node, so the words 1 and 2 remain.
    size = reader.size
    count = min((place.size - place.offset) // size, 16)
    sample, columns = [value], list(range(count))
    seen, both = {value}, False
    for node in sample:
        read = reader.words(node, count)
        if read is None:
            return None
        words = [word & ~COLOUR for word in read]
        columns = [n for n in columns if not words[n] or (words[n] not in seen and reader.is_alike(place, reader.place(words[n])))]
        if len(columns) < 2:
            return None
        used = [n for n in columns if words[n]][:2]
        both = both or len(used) == 2
        for n in used:
            if len(sample) < SAMPLE:
                seen.add(words[n])
                sample.append(words[n])
    varied = [n for n in columns if any((reader.word(node + n * size) or 0) & ~COLOUR for node in sample)][:2]
    return (varied[0] * size, varied[1] * size) if both and len(varied) == 2 else None
