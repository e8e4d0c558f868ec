"""Follow references from roots to managed objects: what they retain, and the names of the roots."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from findleaks.audit.containers.reader import ContainerReader
from findleaks.audit.owners import Owners, find_owners
from findleaks.engine.contract import Blocks, Graph
from findleaks.engine.dominators import Dominators
from findleaks.runtimes.base import NO_OBJECT
from findleaks.session import Session
from findleaks.target.base import Range


def compute_tree_of_objects(session: Session, graph: Graph, roots: Sequence[Range]) -> Dominators:
    """Return the dominator tree of a graph. All root memory (`roots`) counts as one root."""
    tree = graph.dominators(1, (0,), (0,))
    for piece in session.pieces(roots, "reading references to managed objects"):
        tree.scan_roots(piece)
    tree.root_words(session.register_words(), 0)
    return session.compute(tree, "computing memory retained by managed objects")


def name_roots_of_objects(session: Session, blocks: Blocks, found: Sequence[int], roots: Sequence[Range]) -> Iterator[tuple[str, int]]:
    """Yield the name of a root and the index of a block with an object, for each reference from a
    root to an object. `found` has NO_OBJECT for blocks without an object."""
    owners = find_owners(session, ContainerReader(session))
    for one in owners.all:
        for index in blocks.find_all(array("Q", (value for _, value in one.words)))[0] if one.words else ():
            if index < len(found) and found[index] != NO_OBJECT:
                yield one.label, index
    word = session.target.arch.word
    for piece in session.pieces(roots, "naming roots of objects"):
        values = array("Q", session.target.arch.words(piece.data[: len(piece.data) // word * word]))
        for at, index in enumerate(blocks.find_all(values)[0]):
            if index < len(found) and found[index] != NO_OBJECT:
                yield label_root(owners, piece.address + word * at), index


def label_root(owners: Owners, address: int) -> str:
    """Return the name of the root that contains an address."""
    at = owners.at(address)
    return owners.all[at].label if at is not None else f"the word at {address:#x}"
