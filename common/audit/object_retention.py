"""Compute what the objects of each type retain. Supports CPython, whose objects are blocks, and
Ruby."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Optional

from findleaks.audit.heap_retention import compute_heap_tree, join_heap
from findleaks.audit.object_roots import compute_tree_of_objects, name_roots_of_objects
from findleaks.audit.retained_blocks import find_block_owners, sum_subtrees
from findleaks.engine.dominators import Dominators
from findleaks.runtimes.base import ObjectTypes, Runtime
from findleaks.runtimes.heap_dump import BlockReferences, DumpableBlocks
from findleaks.session import Session


def retained_by_type(session: Session, runtime: Runtime, group: Callable[[str], str]) -> dict[str, int]:
    """Return for each type the bytes of the blocks and objects that its live objects retain. Each
    object counts for itself, and its own bytes are included. Returns {} if this is not known for
    the runtime. `group` maps the name of a type to the name of its row."""
    known = _object_types(session, runtime)
    heap = join_heap(session, runtime)
    if heap is not None:
        tree, types, names = compute_heap_tree(session, heap), heap.found, heap.table.names
    elif known is not None:
        tree, types, names = _tree(session), known.types, known.names
    else:
        return {}
    numbers: dict[str, int] = {}
    rows = array("I", (numbers.setdefault(group(name), len(numbers)) for name in names))
    return dict(zip(numbers, (total.bytes for total in tree.by_label(types, rows))))


def find_block_references(session: Session, runtime: Runtime) -> Optional[BlockReferences]:
    """Return what a dump of the objects of this runtime needs; None if its objects are no
    blocks."""
    known = _object_types(session, runtime)
    if known is None:
        return None
    tree = _tree(session)
    counts, retained = sum_subtrees(tree, len(known.types))
    owners = find_block_owners(tree, known.types, counts)
    return BlockReferences(session.graph(), retained, owners, _name_roots(session, known))


def _object_types(session: Session, runtime: Runtime) -> Optional[ObjectTypes]:
    known = session.object_types if isinstance(runtime, DumpableBlocks) else None
    return known if known is not None and known.runtime == runtime.name else None


def _tree(session: Session) -> Dominators:
    """Return the dominator tree of all blocks below one root. It is computed once for a session."""
    return session.once(_tree, lambda: compute_tree_of_objects(session, session.graph(), session.roots))


def _name_roots(session: Session, known: ObjectTypes) -> dict[int, list[str]]:
    """Return phrases for the roots that refer to each object, by block."""
    found: dict[int, dict[str, None]] = {}
    for name, index in name_roots_of_objects(session, session.directory.blocks, known.types, session.roots):
        found.setdefault(index, {})[name] = None
    return {index: list(names) for index, names in found.items()}
