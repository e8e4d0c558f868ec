"""Compute what single blocks retain, for runtimes whose objects are blocks (CPython)."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Optional

from findleaks.audit.containers.reader import ContainerReader
from findleaks.audit.owners import Owners, find_owners
from findleaks.engine.dominators import NO_ROOT, Dominators, root_node
from findleaks.runtimes.base import NO_OBJECT, ObjectTypes, Runtime
from findleaks.runtimes.heap_dump import BlockReferences, DumpableBlocks
from findleaks.session import Session

_STEP = 1 << 18  # blocks whose retained memory is computed at once


def retained_by_type(session: Session, runtime: Runtime, group: Callable[[str], str]) -> dict[str, int]:
    """Return for each type the bytes of the blocks that its live objects retain, one by one,
    themselves included; {} if the objects of the runtime are no blocks. `group` maps the name of a
    type to the name of its row."""
    known = _object_types(session, runtime)
    if known is None:
        return {}
    numbers: dict[str, int] = {}
    rows = array("I", (numbers.setdefault(group(name), len(numbers)) for name in known.names))
    return dict(zip(numbers, (total.bytes for total in _tree(session).by_label(known.types, rows))))


def find_block_references(session: Session, runtime: Runtime) -> Optional[BlockReferences]:
    """Return what a dump of the objects of this runtime needs; None if these are no blocks."""
    known = _object_types(session, runtime)
    if known is None:
        return None
    tree = _tree(session)
    counts, retained = _subtrees(tree, len(known.types))
    owners, ends = array("I", [NO_ROOT]) * len(known.types), list[tuple[int, int]]()
    for place, index in enumerate(tree.members(root_node(0), 0, len(known.types))):
        while ends and ends[-1][0] <= place:
            ends.pop()
        owners[index] = owner = index if known.types[index] != NO_OBJECT else ends[-1][1] if ends else NO_ROOT
        if counts[index] > 1:
            ends.append((place + counts[index], owner))
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


def _subtrees(tree: Dominators, count: int) -> tuple[array[int], array[int]]:
    """Return the number ("I") and the bytes ("Q") of the blocks that each block retains."""
    counts, retained = array("I"), array("Q")
    for first in range(0, count, _STEP):
        last = min(first + _STEP, count)
        labels = array("I", [NO_ROOT]) * count
        labels[first:last] = array("I", range(last - first))
        totals = tree.by_label(labels, array("I", range(last - first)))
        counts.extend(one.blocks for one in totals)
        retained.extend(one.bytes for one in totals)
    return counts, retained


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
