"""Compute the dominator tree of a session's roots and of everything that they reach, with the owner
of each root."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence

from findleaks.audit.container_ownership import find_container_owners
from findleaks.audit.containers.reader import ContainerReader
from findleaks.audit.managed_objects import list_owned_objects
from findleaks.audit.owners import Owners, find_owners, join_owners
from findleaks.engine.dominators import IGNORED, NO_ROOT, Dominators, root_node
from findleaks.engine.terms import NO_BLOCK, Totals
from findleaks.graph.joint_roots import join_roots
from findleaks.session import Session
from findleaks.target.base import Range
from findleaks.value_classes import NamedTuple


class OwnerTree(NamedTuple):
    """The tree, and the owners of its roots. The number of a root in `tree` is the index of its
    owner in `named`."""

    reader: ContainerReader
    named: Owners
    tree: Dominators


def build_owner_tree(session: Session) -> OwnerTree:
    """Return the tree. It is computed once for a session.
    Stacks and registers own only memory that no other root refers to."""
    return session.once(build_owner_tree, lambda: _compute(session))


def _compute(session: Session) -> OwnerTree:
    reader = ContainerReader(session)
    named = find_owners(session, reader)
    tree = _compute_tree(session, reader, named)
    variables = named.priorities[0]
    if not variables or named.all[0].apart:
        return OwnerTree(reader, named, tree)

    def join(joint: Sequence[tuple[int, ...]]) -> tuple[OwnerTree, Sequence[Totals]]:
        joined = join_owners(named, joint)  # the joined owners come first
        tree = _compute_tree(session, reader, joined)
        return OwnerTree(reader, joined, tree), [tree.retained(root_node(number)) for number in range(len(joint))]

    def list_referrers(block: int, limit: int) -> Sequence[int]:
        session.report_progress("computing retained memory", 0.0)
        return session.ownership.referrers(block, limit)

    return join_roots(tree, list_referrers, variables, join, lambda number: named.all[number].name) or OwnerTree(reader, named, tree)


def _compute_tree(session: Session, reader: ContainerReader, named: Owners) -> Dominators:
    tree = session.ownership.dominators(len(named.all), named.bounds, named.numbers, priorities=named.priorities)
    parts, container_owners = find_container_owners(session, reader, named)
    if container_owners:
        tree.set_owners(parts, container_owners)
    pages = [page for one in list_owned_objects(session) for page in one.objects.pages]
    if pages:
        tree.merge_into_roots(_blocks_with_pages(session, pages))
    for piece in session.pieces(sorted([*session.roots, *pages]), "reading the roots"):
        tree.scan_roots(piece)
    _add_disguised(session, tree, named)
    for number, owner in enumerate(named.all):
        if owner.words and not owner.apart:
            tree.root_words([value for _, value in owner.words], number)
    return session.computed(tree, "computing retained memory")


def _add_disguised(session: Session, tree: Dominators, named: Owners) -> None:
    """Add the disguised pointers in root memory to the tree, each with the owner of its address."""
    found = session.disguised
    by_owner: dict[int, list[int]] = {}
    for place, edge in zip(found.places, found.edges):
        at = bisect_right(named.bounds, place) - 1 if edge >> 32 == NO_BLOCK else -1
        if at >= 0:
            by_owner.setdefault(named.numbers[at], []).append(edge & NO_BLOCK)
    for number, blocks in sorted(by_owner.items()):
        if number != NO_ROOT:
            tree.refer(number, blocks)


def _blocks_with_pages(session: Session, pages: Sequence[Range]) -> array[int]:
    """Return the argument of Dominators.merge_into_roots. It selects the blocks that contain pages
    of objects, because such pages are read object by object."""
    blocks = session.directory.blocks
    made = array("I", [NO_ROOT]) * len(blocks)
    for index in blocks.find_all([page.start for page in pages])[0]:
        if index < len(made):
            made[index] = IGNORED
    return made
