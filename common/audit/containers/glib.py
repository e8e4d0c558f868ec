"""Containers of GLib: GHashTable, GTree, GSequence, GPtrArray, GArray, GQueue, GList, GSList.

Sources: glib/gtree.c (struct _GTree, _GTreeNode), garray.c (struct _GRealPtrArray, _GRealArray),
gqueue.h, glist.h, gsequence.c (struct _GSequence, _GSequenceNode) of GLib 2.74 and 2.84, for 64-bit
targets. runtimes/glib/tables.py has GHashTable.

These containers are searched for only if the process has loaded libglib: in other programs, a
structure may have the same members by chance."""

from __future__ import annotations

from array import array
from typing import Optional

from findleaks.audit.containers import Container
from findleaks.audit.containers.reader import SLICE, BlockPlace, ContainerReader
from findleaks.runtimes.glib.tables import LAYOUTS, LEAST_HASH, MOST_REFERENCES, read_header

ROUNDING = 16  # maximum number of bytes by which a block exceeds one of these structures
COUNTED = 1 << 20  # bytes of a hash table's hashes that are read at a time

TREE, TREE_NODE = 48, 40  # bytes of GTree and GTreeNode
SEQUENCE, SEQUENCE_NODE = 32, 40  # bytes of GSequence and GSequenceNode
PARENT, CHILDREN, DATA = 8, (16, 24), 32  # offsets in GSequenceNode, which begins with n_nodes
DEEPEST = 1 << 10  # most levels of a GSequence
LIST_NODE, SLIST_NODE = 24, 16  # bytes of GList and GSList
NEXT, PREVIOUS = 8, 16  # offsets in GList; a GSList has only the first
POINTER_ARRAY, ARRAY = 32, 40  # bytes of GRealPtrArray and GRealArray
MOST_ELEMENT = 1 << 20  # bytes of an element of a GArray


def recognise_glib_head(reader: ContainerReader, address: int) -> Optional[Container]:
    """Return the GLib container whose head of several words is, or has a pointer, at `address`."""
    if not reader.has_glib:
        return None
    block = reader.place(address)
    made = read_glib_container(reader, block._replace(offset=0)) if block is not None else None
    if made is not None and made.start <= address < made.end:
        return made
    return _read_queue(reader, address)


def recognise_glib_pointer(reader: ContainerReader, address: int, place: BlockPlace) -> Optional[Container]:
    """Return the GLib container that the word at `address` points to. `tables` of the result
    contains the block of the container."""
    made = read_glib_container(reader, place) if reader.has_glib and not place.offset else None
    if made is not None:
        made.start, made.end = address, address + reader.size
        made.tables = (place.start, *made.tables)
    return made


def read_glib_container(reader: ContainerReader, block: BlockPlace) -> Optional[Container]:
    """Return the GHashTable, GTree, GSequence, GPtrArray or GArray in this block; None if there is
    none."""
    if block.size > LAYOUTS[0].size + ROUNDING or not reader.place(block.start):
        return None
    for read in (_read_table, _read_tree, _read_sequence, _read_pointer_array, _read_array):
        made = read(reader, block)
        if made is not None:
            return made
    return None


def name_list(reader: ContainerReader, place: BlockPlace, link: int, back: Optional[int]) -> str:
    """Return "GList" or "GSList" if a list's nodes may be GLib's, by the size of a node and the
    offsets of its links; else ""."""
    if not reader.has_glib or place.offset or link != NEXT or (back is not None and back != PREVIOUS):
        return ""
    size = SLIST_NODE if back is None else LIST_NODE
    return "" if not size <= place.size <= size + reader.slack else "GSList" if back is None else "GList"


def _fits(block: BlockPlace, size: int) -> bool:
    return size <= block.size <= size + ROUNDING


def _is_code(reader: ContainerReader, *words: int) -> bool:
    """Whether each word is 0 or the address of a function."""
    return all(not word or reader.session.types.is_code(word) for word in words)


def _starts_block(reader: ContainerReader, address: int, size: int) -> bool:
    """Whether a block of at least `size` usable bytes starts at `address`."""
    place = reader.place(address)
    return place is not None and not place.offset and place.size >= size


def _read_table(reader: ContainerReader, block: BlockPlace) -> Optional[Container]:
    for layout in LAYOUTS:
        found = read_header(reader, block.start, layout) if _fits(block, layout.size) else None
        if found is None or not _is_code(reader, found.hash_function, found.equal_function):
            continue
        # If the table is a set, one array contains both keys and values.
        tables = tuple(dict.fromkeys((found.keys, found.hashes, found.values)))
        if not all(_starts_block(reader, table, 4 * found.slots) for table in tables):
            continue
        here = _count_entries(reader, found.hashes, found.slots)
        problem = "" if here == found.entries else f"its header counts {found.entries:,} entries, but its table has {here:,}"
        end = block.start + layout.keys + 3 * reader.size
        return Container("GHashTable", block.start, end, here, "entries", found.entries, tables=tables, problem=problem)
    return None


def _count_entries(reader: ContainerReader, hashes: int, slots: int) -> int:
    """Return the number of slots that contain the hash of an entry."""
    count = 0
    for first in range(0, 4 * slots, COUNTED):
        reader.report_progress()
        part = reader.arch.words32(reader.read(hashes + first, min(COUNTED, 4 * slots - first)))
        count += sum(hashed >= LEAST_HASH for hashed in part)
    return count


def _read_tree(reader: ContainerReader, block: BlockPlace) -> Optional[Container]:
    found = reader.members(block.start, "PPPPPII") if _fits(block, TREE) else None
    if found is None:
        return None
    root, compare, key_destroy, value_destroy, _, count, references = found
    if not (count > 0 and 0 < references < MOST_REFERENCES and compare and _is_code(reader, compare, key_destroy, value_destroy)):
        return None
    place = reader.place(root)
    if place is None or place.offset or not _fits(place, TREE_NODE):
        return None
    nodes, problem = _walk_tree(reader, root, min(count, reader.most))
    if not problem and len(nodes) != count:
        problem = f"its header counts {count:,} nodes, but {len(nodes):,} are linked"
    return Container("GTree", block.start, block.start + reader.size, len(nodes), "nodes", count, nodes, problem=problem)


def _read_sequence(reader: ContainerReader, block: BlockPlace) -> Optional[Container]:
    """Return the GSequence in a block. Its nodes are a tree, in which one node marks the end, and
    refers to the GSequence itself instead of an element."""
    words = reader.words(block.start, 4) if _fits(block, SEQUENCE) else None
    if words is None or words[3] != block.start or not _is_code(reader, words[1]):
        return None
    last = reader.place(words[0])
    if last is None or last.offset or not _fits(last, SEQUENCE_NODE) or reader.word(last.start + DATA) != block.start:
        return None
    root = last.start
    for _ in range(DEEPEST):
        above = reader.word(root + PARENT)
        if not above:
            break
        root = above
    found = reader.members(root, "I")
    nodes = reader.walk_links([root], CHILDREN, min(found[0], reader.most), DEEPEST) if found is not None and found[0] else None
    if found is None or nodes is None:
        return None
    count, length = found[0] - 1, len(nodes) - 1
    problem = "" if length == count else f"its root counts {count:,} nodes, but {length:,} are linked"
    return Container("GSequence", block.start, block.start + reader.size, length, "nodes", count, nodes, problem=problem)


def _walk_tree(reader: ContainerReader, root: int, most: int) -> tuple[array[int], str]:
    """Return the nodes of a tree by level, and the damage or "". A level with which there would be
    more than `most` nodes is left out and reported as damage. A node is {key, value, left, right,
    balance, has left child, has right child}."""
    nodes, level = array("Q"), array("Q", [root])
    flags = (8, 16) if reader.arch.byteorder == "little" else (48, 40)
    while level and len(nodes) + len(level) <= most:
        nodes.extend(level)
        below = array("Q")
        for first in range(0, len(level), SLICE):
            reader.report_progress()
            (left, right, bits), missing = reader.columns(level[first : first + SLICE], 2 * reader.size, 3)
            if missing:
                return nodes, f"node {level[first + missing[0]]:#x} cannot be read"
            for lower, upper, bit in zip(left, right, bits):
                if bit >> flags[0] & 0xFF:
                    below.append(lower)
                if bit >> flags[1] & 0xFF:
                    below.append(upper)
        level = below
    return nodes, "it links more nodes than its header counts" if level else ""


def _read_pointer_array(reader: ContainerReader, block: BlockPlace) -> Optional[Container]:
    found = reader.members(block.start, "PIIIIP") if _fits(block, POINTER_ARRAY) else None
    if found is None:
        return None
    data, length, room, references, _, free = found
    sound = 0 < length <= room and 0 < references < MOST_REFERENCES and _is_code(reader, free)
    if not sound or not _is_room(reader, data, room * reader.size):
        return None
    return Container("GPtrArray", block.start, block.start + reader.size, length, "pointers", tables=(data,))


def _read_array(reader: ContainerReader, block: BlockPlace) -> Optional[Container]:
    found = reader.members(block.start, "PIIIIIIP") if _fits(block, ARRAY) else None
    if found is None:
        return None
    data, length, room, each, _, references, _, clear = found
    sound = 0 < length <= room and 0 < each <= MOST_ELEMENT and 0 < references < MOST_REFERENCES and _is_code(reader, clear)
    # Before GLib 2.63, `room` is a number of bytes instead of elements.
    if not sound or not (_is_room(reader, data, room * each) or (length * each <= room and _is_room(reader, data, room))):
        return None
    return Container("GArray", block.start, block.start + reader.size, length, "elements", tables=(data,))


def _is_room(reader: ContainerReader, data: int, size: int) -> bool:
    """Whether a block at `data` can be the memory of an array that has requested `size` bytes."""
    place = reader.place(data)
    return place is not None and not place.offset and size <= place.size <= size * 5 // 4 + ROUNDING + reader.slack


def _read_queue(reader: ContainerReader, address: int) -> Optional[Container]:
    """Return the GQueue {head, tail, length} at `address`."""
    found = reader.members(address, "PPI")
    if found is None:
        return None
    head, tail, length = found
    places = reader.place(head), reader.place(tail)
    if any(place is None or place.offset or not LIST_NODE <= place.size <= LIST_NODE + reader.slack for place in places):
        return None
    if not length or reader.word(head + PREVIOUS) != 0 or reader.word(tail + NEXT) != 0:
        return None
    # Some other structures of this size, such as GSequence, begin and end like a list.
    second, last = reader.word(head + NEXT) or 0, reader.word(tail + PREVIOUS) or 0
    if head != tail and (reader.word(second + PREVIOUS) != head or reader.word(last + NEXT) != tail):
        return None
    nodes, problem = reader.follow_list(head, NEXT, min(length, reader.most) + 1)
    if not nodes or (nodes[-1] != tail and not problem):
        return None
    if not problem and len(nodes) != length:
        problem = f"its header counts {length:,} nodes, but {len(nodes):,} are linked"
    return Container("GQueue", address, address + 3 * reader.size, len(nodes), "nodes", length, nodes, problem=problem)
