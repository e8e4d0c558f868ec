"""Who holds what: the owners of a session's roots, and the dominator tree of what they reach."""

from __future__ import annotations

from typing import NamedTuple

from findleaks.audit.container_ownership import find_container_owners
from findleaks.audit.containers.reader import Reader
from findleaks.audit.owners import Owners, owners
from findleaks.engine.dominators import Dominators
from findleaks.session import Session


class Holders(NamedTuple):
    """`named`: the owners, by the numbers of their roots in `tree`."""

    reader: Reader
    named: Owners
    tree: Dominators


def holders(session: Session) -> Holders:
    """Computed once for a session. Stacks and registers own only what nothing else leads to."""
    return session.once(holders, lambda: _computed(session))


def _computed(session: Session) -> Holders:
    reader = Reader(session)
    named = owners(session, reader)
    tree = session.ownership.dominators(len(named.all), named.bounds, named.numbers, priorities=named.priorities)
    parts, container_owners = find_container_owners(session, reader, named)
    if container_owners:
        tree.set_owners(parts, container_owners)
    for piece in session.pieces(session.roots, "reading the roots"):
        tree.scan_roots(piece)
    for number, owner in enumerate(named.all):
        if owner.words:
            tree.root_words([value for _, value in owner.words], number)
    return Holders(reader, named, session.computed(tree, "who holds what"))
