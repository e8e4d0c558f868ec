"""Recognise B-trees: Rust's BTreeMap and BTreeSet, Abseil's btree_map, btree_set and their multi
variants.

Rust (std 1.95 library/alloc/src/collections/btree): the owner contains {root, height, number of
entries}. Abseil (LTS 2022-06-23 absl/container/internal/btree.h): {root, rightmost leaf, number of
entries}; the root's parent is the leftmost leaf. In both, a word of a node is its parent, an inner
node has one child more than it has entries, and all leaves have the same depth. The parent is the
first word, but rustc may place it behind the keys and values (u64 → Box<[u8]>).

Each node points to its parent, so a single pointer to any node reaches the whole tree. Therefore
only the owner's words retain the tree."""

from __future__ import annotations

from array import array
from typing import Optional

from findleaks.audit.containers import Container
from findleaks.audit.containers.reader import ContainerReader
from findleaks.value_classes import NamedTuple

HIGHEST = 16  # maximum number of levels below the root
# Maximum number of entries of a node: Abseil's nodes have 256 bytes, and an entry has at least one
# byte
MOST_ENTRIES = 256
LARGEST = 1 << 14  # maximum number of bytes of a node
MOST_CHILDREN = 12  # children of a node of Rust; their pointers are at the end of the node
MOST_WORDS = 512  # words of the root in which the parent is searched for
MAX_NODES = 1 << 18  # maximum number of nodes of a tree; their children are looked up word by word


class _Head(NamedTuple):
    """The words of a head. `height`: levels below the root (0: unknown); `leaf`: the rightmost leaf
    (0: unknown); `parent`: offset of the parent in each node."""

    root: int
    height: int
    leaf: int
    entries: int
    parent: int = 0


def recognise_btree(reader: ContainerReader, address: int) -> Optional[Container]:
    """Recognise a B-tree of two or more levels. `address`: that of the pointer to the root."""
    head = _read_head(reader, address)
    levels = _walk_levels(reader, head) if head is not None else None
    if head is None or levels is None:
        return None
    nodes = array("Q", [node for level in levels for node in level])
    # Each inner node has one entry fewer than it has children.
    inner = len(nodes) - 1 - sum(map(len, levels[:-1]))
    if not len(levels[-1]) <= head.entries - inner <= MOST_ENTRIES * len(levels[-1]):
        return None
    what = "absl::btree_map or set" if head.leaf else "BTreeMap or BTreeSet"
    unit = f"entries in {len(nodes):,} nodes"
    return Container(what, address, address + 3 * reader.size, head.entries, unit, recorded=head.entries, nodes=nodes)


def _read_head(reader: ContainerReader, address: int) -> Optional[_Head]:
    words = reader.words(address, 3)
    if words is None or not 0 < words[2] <= MOST_ENTRIES * MAX_NODES or not _is_node(reader, words[0]):
        return None
    root, second, entries = words
    parent = reader.word(root)
    if 0 < second <= HIGHEST:
        offset = _find_parent(reader, root)
        return _Head(root, second, 0, entries, offset) if offset >= 0 else None
    leaves = parent is not None and root not in (parent, second) and _is_node(reader, parent) and _is_node(reader, second)
    return _Head(root, 0, second, entries) if leaves else None


def _find_parent(reader: ContainerReader, root: int) -> int:
    """Return the offset of the parent in the nodes of a tree; -1 if it is unknown. It is the word
    that is 0 in the root, and refers to the root in two other blocks to which the root refers."""
    place = reader.place(root)
    words = reader.words(root, place.size // reader.size) if place is not None and place.size <= LARGEST else None
    children = list(dict.fromkeys(word for word in words or () if word and _is_node(reader, word)))[-MOST_CHILDREN:]
    for at, word in enumerate((words or ())[:MOST_WORDS]):
        if not word and len(children) > 1 and sum(reader.word(child + at * reader.size) == root for child in children) > 1:
            return at * reader.size
    return -1


def _is_node(reader: ContainerReader, address: int) -> bool:
    """Whether a block of the size of a node begins at an address."""
    place = reader.place(address)
    return place is not None and place.offset == 0 and 4 * reader.size <= place.size <= LARGEST


def _walk_levels(reader: ContainerReader, head: _Head) -> Optional[list[list[int]]]:
    """Return the nodes by level, from the root on. None unless all nodes above the leaves have two
    children or more."""
    levels = [[head.root]]
    count = 1
    while (len(levels) <= head.height) if head.height else head.leaf not in levels[-1]:
        below = []
        for node in levels[-1]:
            children = _list_children(reader, node, head.parent)
            if len(children) < 2:
                return None
            below += children
        count += len(below)
        if len(levels) > HIGHEST or count > MAX_NODES:
            return None
        reader.report_progress()
        levels.append(below)
    return levels if len(levels) > 1 and len(set(levels[-1])) == len(levels[-1]) else None


def _list_children(reader: ContainerReader, node: int, parent: int) -> list[int]:
    """Return the nodes whose word at the offset `parent` is `node`. Unused slots may have further
    pointers to them."""
    place = reader.place(node)
    words = list(reader.words(node, place.size // reader.size) or ()) if place is not None and place.size <= LARGEST else []
    del words[parent // reader.size : parent // reader.size + 1]
    return list(dict.fromkeys(word for word in words if _is_node(reader, word) and reader.word(word + parent) == node))
