"""The top retainer: the root, and the container in it, that hold most of the memory in use."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.audit.holders import holders
from findleaks.audit.owner import Owner
from findleaks.audit.retained_tree import RetainedNode, TreeBuilder
from findleaks.engine.dominators import Dominators, root_node
from findleaks.engine.terms import Totals
from findleaks.session import Session

DEPTH = 3  # levels of fields examined below a root

MOST = 0.5
""" "Most" is at least this fraction of what is reached; for a field, of what its owner retains."""


MEMBERS = 1 << 20  # blocks retained that are listed at a time
NAMED = 3  # most variables of managed languages that are named


class TopRetainer(NamedTuple):
    """The root that retains more than any other."""

    owner: Owner
    totals: Totals
    reached: Totals
    field: Optional[RetainedNode]  # retains most of that, if one does
    variables: Sequence[tuple[Owner, Totals]]  # of managed languages: those that retain most
    tree: Dominators
    node: int  # the root's, in `tree`

    @property
    def is_most(self) -> bool:
        """Whether it holds most of what is reached."""
        return self.totals.bytes >= MOST * self.reached.bytes

    def members(self) -> Iterator[array[int]]:
        """Indices ("I") of the blocks that it retains, in parts."""
        for first in range(0, self.totals.blocks, MEMBERS):
            yield self.tree.members(self.node, first, MEMBERS)

    def most_common_size(self) -> tuple[int, int]:
        """The usable size with most bytes among the blocks that it retains, and their number."""
        return next(iter(self.tree.sizes(self.node, 1)), (0, 0))

    @property
    def length(self) -> int:
        """Elements of the container, 0 where none was recognised."""
        contents = self.field.contents if self.field is not None else None
        return contents.container.length if contents is not None else 0


def find_top_retainer(session: Session) -> Optional[TopRetainer]:
    """The root that retains more than any other; None where there is no root."""
    reader, named, tree = holders(session)
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


def _deepest(row: RetainedNode) -> Optional[RetainedNode]:
    """The deepest field that retains most of its owner: a container, or a field of a block."""
    found = row if row.contents is not None else None
    for _ in range(DEPTH + 1):
        largest_first = sorted(row.fields, key=lambda child: -child.totals.bytes)
        below = next((child for child in largest_first if child.totals.bytes >= MOST * row.totals.bytes), None)
        if below is None:
            break
        found = row = below
        if row.contents is not None:
            break
    return found
