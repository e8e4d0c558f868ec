"""Compute what the objects of types retain, for CPython, whose objects are blocks, and for Ruby."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Optional

from findleaks.audit.containers.reader import ContainerReader
from findleaks.audit.heap_retention import compute_heap_tree, join_heap
from findleaks.audit.owners import Owners, find_owners
from findleaks.audit.retained_blocks import find_block_owners, sum_subtrees
from findleaks.engine.dominators import Dominators
from findleaks.runtimes.base import NO_OBJECT, ObjectTypes, Runtime
from findleaks.runtimes.heap_dump import BlockReferences, DumpableBlocks
from findleaks.session import Session


def retained_by_type(session: Session, runtime: Runtime, group: Callable[[str], str]) -> dict[str, int]:
    """Return for each type the bytes of the blocks and objects that its live objects retain, one by
    one, themselves included; {} if this is not known for the runtime. `group` maps the name of a
    type to the name of its row."""
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
    """Return what a dump of the objects of this runtime needs; None if these are no blocks."""
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
    return session.once(_tree, lambda: _compute_tree(session))


def _compute_tree(session: Session) -> Dominators:
    tree = session.graph().dominators(1, (0,), (0,))
    for piece in session.pieces(session.roots, "reading references to managed objects"):
        tree.scan_roots(piece)
    tree.root_words(session.register_words(), 0)
    return session.computed(tree, "computing memory retained by managed objects")


def _name_roots(session: Session, known: ObjectTypes) -> dict[int, list[str]]:
    """Return phrases for the roots that refer to each object, by block."""
    owners = find_owners(session, ContainerReader(session))
    found: dict[int, dict[str, None]] = {}

    def add(values: array[int], names: list[str]) -> None:
        for index, name in zip(session.directory.blocks.find_all(values)[0], names):
            if index < len(known.types) and known.types[index] != NO_OBJECT:
                found.setdefault(index, {})[name] = None

    for one in owners.all:
        if one.words:
            add(array("Q", (value for _, value in one.words)), [one.label] * len(one.words))
    word = session.target.arch.word
    for piece in session.pieces(session.roots, "naming roots of objects"):
        values = array("Q", session.target.arch.words(piece.data[: len(piece.data) // word * word]))
        indices = session.directory.blocks.find_all(values)[0]
        places = [at for at, index in enumerate(indices) if index < len(known.types) and known.types[index] != NO_OBJECT]
        add(array("Q", (values[at] for at in places)), [_label(owners, piece.address + word * at) for at in places])
    return {index: list(names) for index, names in found.items()}


def _label(owners: Owners, address: int) -> str:
    at = owners.at(address)
    return owners.all[at].label if at is not None else f"the word at {address:#x}"
