"""Compute what each object retains. Supports runtimes that have a separate heap for objects, and
whose objects refer to one another through native memory (Ruby).

One directory has both the objects and the native blocks. In this directory, the objects replace the
blocks that contain them. If a block contains buffers of several objects, these buffers replace the
block."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import compress
from typing import NamedTuple, Optional

from findleaks.audit.object_roots import compute_tree_of_objects, name_roots_of_objects
from findleaks.audit.retained_blocks import find_block_owners, sum_subtrees
from findleaks.engine.contract import Blocks, Graph
from findleaks.engine.dominators import Dominators
from findleaks.engine.terms import State
from findleaks.runtimes.base import NO_OBJECT, Runtime
from findleaks.runtimes.heap_dump import DumpableHeap, HeapReferences, ObjectTable
from findleaks.session import Session
from findleaks.target.base import Piece, Range
from findleaks.target.ranges import cut_out, merge_ranges, subtract

_GRANULE = 8  # divides the address of every object and block
_OPAQUE = 1  # the number of the exclusion of blocks without references


class JoinedHeap(NamedTuple):
    """Objects and native blocks in one directory.

    For each object of `table`, `places` ("I") has its index in `blocks`. For each block, `found`
    ("I") has the number of the type of its object, or NO_OBJECT. `ranges` is the memory of all
    blocks. `roots` is the other memory that is scanned for references to blocks. `patterns` has for
    each block the index of its exclusion in `table.exclusions`. `graph` is already marked and
    classified."""

    table: ObjectTable
    blocks: Blocks
    places: array[int]
    found: array[int]
    ranges: list[Range]
    roots: list[Range]
    patterns: bytearray
    graph: Graph


def join_heap(session: Session, runtime: Runtime) -> Optional[JoinedHeap]:
    """Return the objects of a runtime and all native blocks; None if the runtime has no separate
    heap for objects. The result is computed once for a session."""
    if not isinstance(runtime, DumpableHeap):
        return None
    return session.once((join_heap, id(runtime)), lambda: _join_heap(session, runtime))


def _join_heap(session: Session, runtime: DumpableHeap) -> Optional[JoinedHeap]:
    session.report_progress(f"reading the objects of {runtime.name}", 0.0)
    table = runtime.object_table()
    if table is None or not table.addresses:
        return None
    session.report_progress(f"reading the objects of {runtime.name}", 0.5)
    blocks, places = _join_directories(session, table)
    found = array("I", [NO_OBJECT]) * len(blocks)
    patterns = bytearray(len(blocks))
    for index, number, pattern in zip(places, table.types, table.patterns):
        found[index], patterns[index] = number, pattern
    for index in blocks.find_all(array("Q", table.opaque))[0]:
        if index < len(patterns) and found[index] == NO_OBJECT:
            patterns[index] = _OPAQUE
    ranges = merge_ranges([*session.heap_ranges(), *table.ranges])
    starts, sizes = table.buffers[0::2], table.buffers[1::2]
    ranges = merge_ranges([*ranges, *(Range(start, start + size) for start, size in zip(starts, sizes))])
    roots = subtract(session.roots, ranges)
    graph = session.engine.graph(blocks)
    graph.exclude_words(patterns, table.exclusions)
    for piece in _pieces(session, table, ranges):
        graph.scan_blocks(piece)
    for piece in session.pieces(roots, "reading the roots"):
        graph.scan_roots(piece)
    graph.root_words(session.register_words())
    for step in (graph.mark, graph.classify):
        while not step(session.budget):
            session.report_progress(f"following references of {runtime.name}", 0.5)
    return JoinedHeap(table, blocks, places, found, ranges, roots, patterns, graph)


def _join_directories(session: Session, table: ObjectTable) -> tuple[Blocks, array[int]]:
    """Return the joined directory, and the index of each object in it. In corrupt memory, objects
    and blocks may overlap. In this case, the one with the lower address is kept. An object that is
    left out gets the index of another object or block."""
    native = session.directory.blocks
    columns = native.columns()
    is_kept = bytearray(state == State.IN_USE for state in columns.state)
    starts, lengths = table.buffers[0::2], table.buffers[1::2]
    for index in native.find_all(starts)[0]:
        if index < len(is_kept):
            is_kept[index] = 0
    for start, end in table.ranges:
        first = native.at_or_after(start)
        first -= first > 0 and native.address(first - 1) + native.size(first - 1) > start
        last = native.at_or_after(end)
        is_kept[first:last] = bytes(last - first)
    addresses = array("Q", table.addresses) + starts + array("Q", compress(columns.address, is_kept))
    sizes = array("Q", table.sizes) + lengths + array("Q", compress(columns.size, is_kept))
    made = session.engine.blocks(session.target.arch, _GRANULE)
    places, end = array("I", bytes(4 * len(table.addresses))), 0
    kept_addresses, kept_sizes = array("Q"), array("Q")
    for at in sorted(range(len(addresses)), key=addresses.__getitem__):
        if at < len(places):
            places[at] = len(kept_addresses)
        if addresses[at] >= end:
            end = addresses[at] + max(sizes[at], 1)
            kept_addresses.append(addresses[at])
            kept_sizes.append(sizes[at])
    made.append(kept_addresses, kept_sizes, bytes(len(kept_addresses)))
    made.seal()
    return made, places


def compute_heap_tree(session: Session, heap: JoinedHeap) -> Dominators:
    """Return the dominator tree of the objects and blocks. All root memory counts as one root."""
    return session.once((compute_heap_tree, id(heap.graph)), lambda: compute_tree_of_objects(session, heap.graph, heap.roots))


def find_heap_references(session: Session, runtime: Runtime) -> Optional[HeapReferences]:
    """Return the data that a dump of the objects of this runtime needs; None if the runtime has no
    separate heap for objects."""
    heap = join_heap(session, runtime)
    if heap is None:
        return None
    tree = compute_heap_tree(session, heap)
    counts, retained = sum_subtrees(tree, len(heap.blocks))
    owners = find_block_owners(tree, heap.found, counts)

    def pieces() -> Iterator[Piece]:
        return _pieces(session, heap.table, heap.ranges)

    find, table = heap.blocks.find_all, heap.table
    buffers = dict(zip(find(table.buffers[0::2])[0], find(table.buffer_owners)[0]))
    roots = _name_roots(session, heap)
    return HeapReferences(heap.blocks, heap.graph, heap.places, heap.found, retained, owners, buffers, roots, pieces)


def _pieces(session: Session, table: ObjectTable, ranges: list[Range]) -> Iterator[Piece]:
    """Yield the memory of objects and blocks, without stale words."""
    for piece in session.pieces(ranges, "reading objects"):
        yield from cut_out(piece, table.stale)


def _name_roots(session: Session, heap: JoinedHeap) -> dict[str, list[int]]:
    """Return the indices of the objects to which each root refers directly. The keys are the names
    of the roots."""
    found: dict[str, dict[int, None]] = {}
    for name, index in name_roots_of_objects(session, heap.blocks, heap.found, heap.roots):
        found.setdefault(name, {})[index] = None
    return {name: list(indices) for name, indices in found.items()}
