"""Compute the dominator tree of a session's roots and of everything that they reach, with the owner
of each root."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence

from findleaks.allocators.bulk import find_pointers
from findleaks.audit.container_ownership import find_container_owners
from findleaks.audit.containers.reader import ContainerReader
from findleaks.audit.managed_objects import list_owned_objects
from findleaks.audit.owner import OwnerSort
from findleaks.audit.owners import Owners, find_owners, join_owners
from findleaks.engine.dominators import IGNORED, NO_ROOT, SHARED, Dominators, RootSet, root_node
from findleaks.engine.terms import NO_BLOCK, Totals
from findleaks.graph.joint_roots import LEAST, rebuild_until_joint, select_joint_roots
from findleaks.session import Session
from findleaks.target.base import Range
from findleaks.value_classes import NamedTuple

# References of variables that are examined to find joint roots; a million takes about 0.3 s
MAX_REFERENCES = 1 << 20


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
    shared = tree.sum_retained(SHARED).bytes
    if not shared or shared < LEAST * tree.total().bytes or named.all[0].apart:
        return OwnerTree(reader, named, tree)

    def join(joint: Sequence[tuple[int, ...]]) -> tuple[OwnerTree, Sequence[Totals]]:
        joined, numbers = join_owners(named, joint)
        tree = _compute_tree(session, reader, joined)
        return OwnerTree(reader, joined, tree), [tree.sum_retained(root_node(number)) for number in numbers]

    names = [owner.name if owner.has_symbol else "" for owner in named.all]
    sets = select_joint_roots(tree, _find_root_sets(session, named, tree), names.__getitem__)
    return rebuild_until_joint(tree, sets, join) or OwnerTree(reader, named, tree)


def _find_root_sets(session: Session, named: Owners, tree: Dominators) -> list[RootSet]:
    """Return the sets of variables that reach the shared memory: first the variables of managed
    languages, then those of C and C++. Other roots are not joined, because they have no name that
    the program's author knows."""
    ends = [named.priorities[0], sum(owner.sort < OwnerSort.LIBRARY for owner in named.all)]
    roots, blocks = array("I"), array("I")
    for number, owner in enumerate(named.all[: ends[1]]):
        if len(blocks) > MAX_REFERENCES:
            return []
        values = array("Q", (value for _, value in owner.words))
        for piece in session.pieces(owner.ranges, "finding joint roots"):
            values.extend(find_pointers(session.engine, piece, *_heap_bounds(session))[1])
        indices, _ = session.directory.blocks.find_all(values)
        found = array("I", filter(NO_BLOCK.__ne__, indices))
        roots += array("I", [number]) * len(found)
        blocks += found
    joint = list[RootSet]()
    for first, end in zip([0, *ends], ends):
        if end - first > 1:
            sets = tree.root_sets(first, end, roots, blocks)
            while not sets.compute(session.budget):
                session.report_progress("finding joint roots", 0.0)
            joint += sets.sets()
    return joint


def _heap_bounds(session: Session) -> tuple[int, int]:
    heaps = session.heap_ranges()
    return (heaps[0].start, heaps[-1].end) if heaps else (0, 0)


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
    return session.compute(tree, "computing retained memory")


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
