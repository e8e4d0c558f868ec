"""Find the owners of native memory to which objects of a managed heap refer, for runtimes whose
roots have names (Go): the root that retains the object."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Optional

from findleaks.audit.heap_roots import HeapRoots, list_partitions
from findleaks.audit.owner import Owner, OwnerSort
from findleaks.engine.dominators import NO_ROOT, Dominators
from findleaks.runtimes.base import Holders
from findleaks.session import Session
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges

_GARBAGE, _SEVERAL = "garbage", "several roots"
_FINALIZED = "objects with a finalizer"  # holders that are neither live nor garbage


def find_heap_root_owners(session: Session) -> Iterator[Owner]:
    """Yield an owner for each root of a managed heap that retains objects with references to native
    memory. Its ranges are these objects, and the stacks in the heap that belong to the root."""
    for runtime in session.runtimes if len(session.directory.blocks) else ():
        holders = runtime.holders() if runtime.names_roots else None
        heap = next((one for one in list_partitions(session) if one.runtime == runtime.name), None) if holders is not None else None
        if holders is not None and heap is not None:
            session.report_progress(f"attributing native memory to roots of {runtime.name}", 0.0)
            yield from _owners(heap, holders, {name: list(parts) for name, parts in runtime.stack_roots().items()})


def _owners(heap: HeapRoots, holders: Holders, ranges: dict[str, list[Range]]) -> Iterator[Owner]:
    """Yield an owner for each root of a heap. `ranges`: the stacks in the heap, by root. This
    function adds the objects that each root retains."""
    indices = heap.graph.blocks.find_all(holders.addresses)[0]
    names = {root.node: root.name for root in heap.roots}
    known: dict[int, int] = {}
    for index, address, size, kind in zip(indices, holders.addresses, holders.sizes, holders.types):
        name = _FINALIZED if holders.freed and kind >= holders.freed else _GARBAGE
        if kind == NO_ROOT:
            continue
        if not holders.garbage or kind < holders.garbage:
            root = _root_of(heap.tree, index, known)
            name = names.get(root, _SEVERAL) if root is not None else _FINALIZED
        ranges.setdefault(name, []).append(Range(address, address + size))
    for name, parts in ranges.items():
        # As for the rest of the heap: a variable of C has priority.
        label = f"{name} of {heap.runtime}" if name in (_GARBAGE, _FINALIZED) else name
        yield Owner(OwnerSort.MAPPING, label, f"{heap.runtime}'s heap", ranges=merge_ranges(parts), managed=True, is_expanded=False)


def _root_of(tree: Dominators, index: int, known: dict[int, int]) -> Optional[int]:
    """Return the node of the root that retains an object, SHARED if several do; None if the object
    is not live. `known` has results by object."""
    path, node, root = array("Q"), tree.idom(index), None
    at = index
    while node is not None:
        path.append(at)
        if at in known:
            root = known[at]
            break
        if node < 0:
            root = node
            break
        at, node = node, tree.idom(node)
    if root is not None:
        known.update(dict.fromkeys(path, root))
    return root
