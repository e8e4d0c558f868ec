"""Recognise linked lists: singly or doubly linked, circular, intrusive. The link may be anywhere in
a node.

Links are found by trial. A link is a word of the first node that points to the same offset of
another block of the same size. In that block, the word at this offset must point to a further node
or end the list."""

from __future__ import annotations

from array import array
from typing import Optional

from findleaks.audit.containers import LEAST, Container
from findleaks.audit.containers.glib import name_list
from findleaks.audit.containers.reader import SLICE, BlockPlace, ContainerReader
from findleaks.target.base import Range
from findleaks.value_classes import replace

# Fewest nodes of a list that is reported as damaged if its end is invalid; a shorter one may not be
# a list
SURE = 32
MOST_HEADS = 1 << 18  # heads of an array of lists
MOST_LEVELS = 1 << 16  # nodes of the longest list of an array
LEVELS = 1 << 10  # levels between two checks for Ctrl-C
WORDS = 64  # words of a node that are tried as links
SAMPLE = 8  # nodes that are followed for each of these words


def recognise_ring(reader: ContainerReader, address: int) -> Optional[Container]:
    """Recognise a circular list with the head {next, previous} at `address`.
    It is a std::list (GCC 12 bits/stl_list.h, _List_node_base, _List_node_header: a node count
    follows), Linux's list_head, or BSD's CIRCLEQ."""
    size = reader.size
    head = reader.words(address, 3) or reader.words(address, 2)
    if head is None:
        return None
    first, last = head[:2]
    if address in (first, last) or first % size or last % size or reader.place(first) is None or reader.place(last) is None:
        return None
    if reader.word(first + size) != address or reader.word(last) != address:
        return None
    nodes, problem = follow_links(reader, first, 0, address)
    if not problem:
        problem = _check_back_links(reader, nodes, address, size)
    counted = len(head) > 2 and head[2] == len(nodes)
    what = "std::list" if counted else "circular list"
    recorded = head[2] if counted else None
    return Container(what, address, address + (3 if counted else 2) * size, len(nodes), recorded=recorded, nodes=nodes, problem=problem)


def recognise_ring_array(reader: ContainerReader, start: int, end: int, head: tuple[int, int]) -> Optional[Container]:
    """Recognise a block [start, end) that is an array of heads of circular lists, such as the slots
    of a timer wheel. Each head is {next, previous}; in an empty list, both are its own address.
    `head`: the owner's words that refer to the block."""
    size = reader.size
    count = (end - start) // size & -2
    words = reader.words(start, count) if count <= 2 * MOST_HEADS else None
    if words is None or count < 2 * LEAST:
        return None
    level = array("Q")
    for at in range(0, count, 2):
        first, last, own = words[at], words[at + 1], start + at * size
        if first == last == own:
            continue
        if not first or first % size or reader.word(first + size) != own or not last or last % size or reader.word(last) != own:
            return None
        level.append(first)
    nodes, lists, longest = array("Q"), len(level), 0
    while level and len(nodes) <= reader.most and longest < MOST_LEVELS:
        if longest % LEVELS == 0:
            reader.report_progress()
        longest += 1
        (after,), missing = reader.columns(level, 0, 1)
        if missing:
            return None
        nodes.extend(level)
        level = array("Q", [node for node in after if not start <= node < end])
    is_whole = not level and LEAST <= lists <= len(nodes) <= reader.most and len(set(nodes)) == len(nodes)
    return Container("array of circular lists", head[0], head[1], len(nodes), nodes=nodes, tables=(start,)) if is_whole else None


def recognise_counted_list(reader: ContainerReader, address: int) -> Optional[Container]:
    """Recognise a doubly linked list with the head {first, last, number of nodes} at `address`,
    such as Rust's LinkedList (std 1.95 library/alloc/src/collections/linked_list.rs) and GQueue."""
    words = reader.words(address, 3)
    if words is None or words[0] == words[1] or not LEAST <= words[2] <= reader.most:
        return None
    first, last, count = words
    place = reader.place(first)
    if place is None or not reader.is_alike(place, reader.place(last)):
        return None
    made = recognise_list(reader, address, place, first)
    if made is None or made.problem or "doubly" not in made.what or made.length != count or made.nodes[-1] != last:
        return None
    return replace(made, end=address + 3 * reader.size, recorded=count)


def follow_links(reader: ContainerReader, first: int, offset: int, end: int) -> tuple[array[int], str]:
    """Follow the links at `offset` from `first` to `end`. `end` is a node inside the owner; 0: a
    null link.
    Returns the addresses of the links in the nodes, and a description of the damage or ""."""
    nodes, problem = reader.follow_list(first, offset, reader.most + 1)
    if end and end in nodes:
        return nodes[: nodes.index(end)], ""
    if end and nodes and reader.word(nodes[-1] + offset) == end:
        return nodes, ""
    if end and not problem:
        problem = "it ends before it returns to its head"
    return nodes, problem


def _check_back_links(reader: ContainerReader, nodes: array[int], before: int, offset: int) -> str:
    """Return the damage at the first node whose back link (at `offset`) does not point to the
    preceding node, or ""."""
    for first in range(0, len(nodes), SLICE):
        reader.report_progress()
        some = nodes[first : first + SLICE]
        (backs,), _ = reader.columns(some, offset, 1)
        expected = array("Q", [before])
        expected.extend(some[:-1])
        if backs != expected:
            bad = next(n for n, (a, b) in enumerate(zip(backs, expected)) if a != b)
            return f"the back link of node {some[bad]:#x} is {backs[bad]:#x} instead of {expected[bad]:#x}"
        before = some[-1]
    return ""


def recognise_list(reader: ContainerReader, address: int, place: BlockPlace, value: int) -> Optional[Container]:
    """Recognise the list that begins with the pointer `value` at `address`. Returns None if the
    block that `value` points to is not a list node."""
    offset = find_link(reader, place, value)
    if offset is None:
        return None
    nodes, problem = reader.follow_list(value, offset, reader.most + 1)
    if len(nodes) < LEAST:
        return None
    size = reader.size
    circular = problem and (reader.word(nodes[-1] + offset) == value)
    outside = _ends_outside_blocks(reader, nodes, offset) if problem and not circular else False
    if problem and not circular and not outside and len(nodes) < SURE:
        return None
    back = find_back_link(reader, place, nodes, offset)
    name = "" if circular else name_list(reader, place, offset, back)
    what = ("circular " if circular else "") + ("linked list" if back is None else "doubly linked list")
    what = f"{name} ({what})" if name else what
    return Container(what, address, address + size, len(nodes), nodes=nodes, problem="" if circular or outside else problem)


def _ends_outside_blocks(reader: ContainerReader, nodes: array[int], offset: int) -> bool:
    """Whether the list ends at a mapped address that is in no block. It may be a sentinel, or a
    head elsewhere."""
    end = reader.word(nodes[-1] + offset)
    return end is not None and reader.word(end) is not None and reader.blocks.find(end) < 0


def find_link(reader: ContainerReader, place: BlockPlace, value: int) -> Optional[int]:
    """Return the offset of the link to the next node, relative to `value`. It is the word with the
    longest chain of nodes (at most SAMPLE are counted). Words with which a runtime lists all of its
    objects are not links: each object would be the head of a long list."""
    size = reader.size
    count = min((place.size - place.offset) // size, WORDS)
    words = enumerate(reader.words(value, count) or ())
    alike = ((n * size, word) for n, word in words if word and word != value and reader.is_alike(place, reader.place(word)))
    is_excluded = reader.session.graphs.is_excluded
    links = (offset for offset, word in alike if not is_excluded(place.block, value + offset, word))
    lengths = {offset: _sample_length(reader, place, value, offset) for offset in links}
    return max((offset for offset in lengths if lengths[offset] >= LEAST), key=lambda offset: lengths[offset], default=None)


def _sample_length(reader: ContainerReader, place: BlockPlace, value: int, offset: int) -> int:
    """Return the length of the list from `value`, at most SAMPLE. 0 if a link refers to something
    that is neither a node nor the end of the list."""
    seen = {value}
    node = value
    while len(seen) < SAMPLE:
        after = reader.word(node + offset)
        if not after or after in seen:
            break
        if not reader.is_alike(place, reader.place(after)):
            return len(seen) if reader.place(after) is None else 0
        seen.add(after)
        node = after
    return len(seen)


def find_back_link(reader: ContainerReader, place: BlockPlace, nodes: array[int], link: int) -> Optional[int]:
    """Return the offset of the link to a node's predecessor; None if the first few nodes have no
    such link."""
    size = reader.size
    for offset in range(0, min(place.size - place.offset, WORDS * size), size):
        if offset != link and all(reader.word(after + offset) == node for node, after in zip(nodes[: SAMPLE - 1], nodes[1:SAMPLE])):
            return offset
    return None


def find_other_pointers(reader: ContainerReader, container: Container, pointers: dict[int, int]) -> list[Range]:
    """Return the owner's other pointers (address -> value) to nodes of a list: its tail, or a
    cursor."""
    inside, size = reader.select_nodes(container.nodes, set(pointers.values())), reader.size
    spans = (Range(at, at + size) for at, value in pointers.items() if value in inside and not container.start <= at < container.end)
    return sorted(spans)
