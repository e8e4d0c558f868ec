"""The file that `roots -o` writes: the retained trees of all roots, deeper than text has them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Optional

from findleaks.arg_types import address_word
from findleaks.audit.containers.reader import Reader
from findleaks.audit.holders import holders
from findleaks.audit.owners import Owners
from findleaks.audit.retained_roots import lost_leaders, lost_tree, matching_owners, shared_row
from findleaks.audit.retained_tree import RetainedNode, TreeBuilder, root_rows
from findleaks.commands.export import of_target, write_profile
from findleaks.commands.profiles import of_retained
from findleaks.engine.dominators import SHARED, root_node
from findleaks.engine.terms import Totals
from findleaks.results.written import WrittenFile
from findleaks.session import Session

DEPTH = 12  # levels of fields below a root
FIELDS = 50  # fields of a level; others are one step
LEAST = 0.0005  # least share of its root, or of a quarter of all, that gives a field its step
ROOTS = 500  # roots with their fields, the largest first
LEADERS = 2000  # lost blocks with their fields


def write(session: Session, args: argparse.Namespace, form: str) -> WrittenFile:
    """Write the trees of what `roots` shows, after it has found that there is such a thing."""
    depth = max(args.depth, DEPTH)
    if args.lost:
        tree = lost_tree(session)
        rows, rest = _lost(TreeBuilder(session, Reader(session), tree, depth, FIELDS, LEAST), args.limit or LEADERS)
        title = "Leaks, with the memory reachable only from each"
    else:
        reader, named, tree = holders(session)
        builder, rest = TreeBuilder(session, reader, tree, depth, FIELDS, LEAST), Totals(0, 0)
        title = "Who holds the memory"
        if args.subject is None:
            rows = root_rows(builder, named.all, tree.by_root(), ROOTS)
            rows.append(shared_row(builder, named, FIELDS, tree.spread(SHARED, 1)))
        else:
            title = f"What {args.subject} holds"
            rows = _one(builder, named, args.subject)
    profile = of_retained(f"{title}: {session.target.description}", rows, rest)
    return write_profile(session, of_target(profile, session.target), args.output, form)


def _one(builder: TreeBuilder, named: Owners, word: str) -> list[RetainedNode]:
    """Roots of that name, or the block or root at that address."""
    numbers: Sequence[Optional[int]] = matching_owners(named.all, word)
    if not numbers:
        address = address_word(word)
        index = builder.reader.blocks.find(address)
        if index >= 0:
            return [builder.of_block(index)]
        numbers = [named.at(address)]
    return [builder.of_root(named.all[number], root_node(number)) for number in numbers if number is not None]


def _lost(builder: TreeBuilder, limit: int) -> tuple[Sequence[RetainedNode], Totals]:
    """The leaders by kind, and what the others retain."""
    rows = []
    for row, kind in lost_leaders(builder, limit):
        row.name = f"{kind}: {row.name}"
        rows.append(row)
    listed, total = Totals.sum_of(row.totals for row in rows), builder.tree.total()
    return rows, Totals(total.blocks - listed.blocks, total.bytes - listed.bytes)
