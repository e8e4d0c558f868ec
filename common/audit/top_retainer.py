"""Memory that is in use and held: which one root has most of it, and in what container."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.audit.containers.reader import Reader
from findleaks.audit.owners import Owner, owners
from findleaks.audit.retained_tree import RetainedNode, TreeBuilder, tree_of
from findleaks.engine.dominators import root_node
from findleaks.engine.terms import Totals
from findleaks.session import Session

DEPTH = 3
"""Levels of fields that are looked at below a root."""

MOST = 0.5
"""The part of what is reached that one root must hold alone to be named."""


NAMED = 3
"""Variables of managed languages that are named, the largest."""


class Growth(NamedTuple):
    """`owner` retains `totals`, more than any other root; most of it in `field`, if one has most: what it is, in words, and what that
    retains. `variables` are those of managed languages that retain most."""

    owner: Owner
    totals: Totals
    reached: Totals
    field: Optional[RetainedNode]
    variables: Sequence[tuple[Owner, Totals]]

    @property
    def is_most(self) -> bool:
        """It holds most of what is reached."""
        return self.totals.bytes >= MOST * self.reached.bytes

    @property
    def length(self) -> int:
        """Elements of the container, 0 where none was recognised."""
        contents = self.field.contents if self.field is not None else None
        return contents.container.length if contents is not None else 0


def growth(session: Session) -> Optional[Growth]:
    """The root that holds more than any other; None where there is none."""
    reader = Reader(session)
    named = owners(session, reader)
    tree = tree_of(session, reader, named)
    totals = tree.by_root()
    most = max(range(len(named.all)), key=lambda number: totals[number].bytes, default=-1)
    reached = tree.total()
    if most < 0:
        return None
    order = sorted(range(named.priorities[0]), key=lambda number: (-totals[number].bytes, number))[:NAMED]
    variables = [(named.all[number], totals[number]) for number in order]
    found = Growth(named.all[most], totals[most], reached, None, variables)
    if not found.is_most:
        return found
    row = TreeBuilder(session, reader, tree, DEPTH, 3).of_root(named.all[most], root_node(most))
    return found._replace(field=_deepest(row))


def _deepest(row: RetainedNode) -> Optional[RetainedNode]:
    """The field farthest down that retains most of what its owner does; a container, or a block's field."""
    found = row if row.contents is not None else None
    for _ in range(DEPTH + 1):
        below = next((child for child in _fields(row) if child.totals.bytes >= MOST * row.totals.bytes), None)
        if below is None:
            break
        found = row = below
        if row.contents is not None:
            break
    return found


def _fields(row: RetainedNode) -> Iterator[RetainedNode]:
    yield from sorted(row.fields, key=lambda child: -child.totals.bytes)
