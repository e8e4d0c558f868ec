"""Describe what the roots of managed heaps retain there, as results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from findleaks.arg_types import parse_address
from findleaks.audit.heap_roots import HeapRoots, list_heap_roots
from findleaks.audit.owners import Owners
from findleaks.audit.retained_roots import match_owners
from findleaks.engine.dominators import SHARED
from findleaks.errors import UsageError
from findleaks.results.roots import HeapObjects, HeapRoot, ManagedHeap
from findleaks.runtimes.object_graph import ManagedObject
from findleaks.session import Session

TYPES = 10  # types of a root in the result


def all_heaps(session: Session, expanded: int, most: int = 0) -> list[ManagedHeap]:
    """Return the heaps with all roots. Only the first `expanded` roots (0: all) have types. `most`:
    maximum number of roots (0: all)."""
    return [_heap(one, expanded, most, shared=_types(one, SHARED) if one.is_partition else ()) for one in list_heap_roots(session)]


def heaps_of_subject(session: Session, named: Owners, word: str, limit: int) -> list[ManagedHeap]:
    """Return the heaps that have roots with the name `word`, each with these roots. If `word` is
    the address of an object that is not a block, return its heap, with the object in place of the
    roots. `named`: the roots of blocks, whose names have priority over addresses."""
    matching = (one.match(word) for one in list_heap_roots(session))
    found = [_heap(one, limit, limit) for one in matching if one.roots]
    if found or match_owners(named.all, word):
        return found
    try:
        address = parse_address(word)
    except UsageError:
        return []
    return _object_heaps(session, address) if session.directory.blocks.find(address) < 0 else []


def _object_heaps(session: Session, address: int) -> list[ManagedHeap]:
    for one in list_heap_roots(session):
        found = one.graph.find(address)
        if found is not None:
            return [_heap(one._replace(roots=()), 0, 0, [_object(one, found)])]
    return []


def _heap(one: HeapRoots, expanded: int, most: int, objects: Sequence[HeapRoot] = (), shared: Sequence[HeapObjects] = ()) -> ManagedHeap:
    total, rest = one.tree.total(), one.tree.sum_shared() if one.is_partition else None
    last = min(most or len(one.roots), len(one.roots))
    roots = [*(_root(one, at, not expanded or at < expanded) for at in range(last)), *objects]
    shared_objects, shared_bytes = rest if rest is not None else (None, None)
    return ManagedHeap(one.runtime, total.blocks, total.bytes, roots, len(one.roots) - last, shared_objects, shared_bytes, shared)


def _root(heap: HeapRoots, at: int, has_types: bool) -> HeapRoot:
    one = heap.roots[at]
    return HeapRoot(
        one.name,
        cast(Any, one.sort),
        one.totals.blocks,
        one.totals.bytes,
        one.address or None,
        one.type or None,
        one.values or None,
        one.threads or None,
        types=_types(heap, one.node) if has_types and one.node is not None else (),
    )


def _object(one: HeapRoots, found: ManagedObject) -> HeapRoot:
    totals = one.tree.sum_retained(found.block)
    name = f"{found.type} at {found.address:#x}"
    types = _types(one, found.block) if totals.blocks else ()
    return HeapRoot(name, "object", totals.blocks, totals.bytes, found.address, holder=one.holder_of(found) or None, types=types)


def _types(one: HeapRoots, node: int) -> list[HeapObjects]:
    return [HeapObjects(name, totals.blocks, totals.bytes) for name, totals in one.types_of(node)[:TYPES]]
