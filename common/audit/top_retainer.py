"""The top retainer: the root, and the container in it, that retain most of the memory in use."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.audit.owner import Owner
from findleaks.audit.owner_tree import build_owner_tree
from findleaks.audit.retained_roots import PART, build_shared_row
from findleaks.audit.retained_rows import RetainedNode
from findleaks.audit.retained_tree import TreeBuilder
from findleaks.engine.dominators import SHARED, Dominators, root_node
from findleaks.engine.terms import Totals
from findleaks.session import Session

DEPTH = 3  # levels of fields examined below a root

MOST = 0.5
"""Least fraction that counts as "most" of the reachable memory, or of the memory that a field's
owner retains."""


MEMBERS = 1 << 20  # retained blocks listed at a time
NAMED = 12  # most variables of managed languages that are named


class TopRetainer(NamedTuple):
    """The root that retains more memory than any other."""

    owner: Owner
    totals: Totals
    reached: Totals
    field: Optional[RetainedNode]  # the field that retains most of it, if one does
    variables: Sequence[tuple[Owner, Totals]]  # variables of managed languages that retain most
    tree: Dominators
    node: int  # number of the root in `tree`

    @property
    def is_most(self) -> bool:
        """Whether the root retains most of the reachable memory."""
        return self.totals.bytes >= MOST * self.reached.bytes

    def members(self) -> Iterator[array[int]]:
        """Yield the indices ("I") of the blocks that it retains, in parts."""
        for first in range(0, self.totals.blocks, MEMBERS):
            yield self.tree.members(self.node, first, MEMBERS)

    def most_common_size(self) -> tuple[int, int]:
        """Return the usable size with the most bytes among the retained blocks, and the number of
        blocks."""
        return next(iter(self.tree.sizes(self.node, 1)), (0, 0))

    @property
    def length(self) -> int:
        """Number of elements in the container; 0 if none was recognised."""
        contents = self.field.contents if self.field is not None else None
        return contents.container.length if contents is not None else 0


def find_top_retainer(session: Session) -> Optional[TopRetainer]:
    """Return the root that retains more than any other; None if there is no root."""
    reader, named, tree = build_owner_tree(session)
    totals = tree.by_root()
    most = max(range(len(named.all)), key=lambda number: totals[number].bytes, default=-1)
    reached = tree.total()
    if most < 0:
        return None
    order = sorted(range(named.priorities[0]), key=lambda number: (-totals[number].bytes, number))[:NAMED]
    variables = [(named.all[number], totals[number]) for number in order]
    found = TopRetainer(named.all[most], totals[most], reached, None, variables, tree, root_node(most))
    if not found.is_most:
        return found
    row = TreeBuilder(session, reader, tree, DEPTH, 3).of_root(named.all[most], root_node(most))
    return found._replace(field=_deepest(row))


def find_shared_part(session: Session) -> Optional[tuple[Totals, RetainedNode]]:
    """Return the memory that several roots retain together, and the row of its largest part; None
    if it is little, or no part stands out."""
    reader, named, tree = build_owner_tree(session)
    totals = tree.retained(SHARED)
    if totals.bytes < PART * tree.total().bytes:
        return None
    row = build_shared_row(TreeBuilder(session, reader, tree, 1, NAMED), named, NAMED, tree.spread(SHARED, NAMED))
    return (totals, row.fields[0]) if row.fields and row.fields[0].totals.bytes >= PART * totals.bytes else None


def _deepest(row: RetainedNode) -> Optional[RetainedNode]:
    """Return the deepest field that retains most of its owner: a container, a field of a block, or
    a block that several fields refer to."""
    found = row if row.contents is not None else None
    for _ in range(DEPTH + 1):
        largest_first = sorted([*row.fields, *row.shared_rows], key=lambda child: -child.totals.bytes)
        below = next((child for child in largest_first if child.totals.bytes >= MOST * row.totals.bytes), None)
        if below is None:
            break
        found = row = below
        if row.contents is not None:
            break
    return found
