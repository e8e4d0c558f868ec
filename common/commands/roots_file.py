"""Write the file of `roots -o`: the retained trees of all roots, with more levels than in the
text."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Optional

from findleaks.answers.heap_roots import all_heaps, heaps_of_subject
from findleaks.arg_types import parse_address
from findleaks.audit.containers.reader import ContainerReader
from findleaks.audit.owner_tree import build_owner_tree
from findleaks.audit.owners import Owners
from findleaks.audit.retained_roots import build_leaked_tree, build_root_rows, build_shared_row, list_leak_heads, match_owners
from findleaks.audit.retained_rows import RetainedNode
from findleaks.audit.retained_tree import TreeBuilder
from findleaks.commands.export import of_target, write_profile
from findleaks.commands.profiles import of_retained
from findleaks.engine.dominators import SHARED, SHARED_NAME, root_node
from findleaks.engine.terms import Totals
from findleaks.results.roots import ManagedHeap
from findleaks.results.written import WrittenFile
from findleaks.session import Session

DEPTH = 12  # Number of levels of fields below a root.
FIELDS = 50  # Number of fields on each level; further fields form one step.
# A field gets a step if it has at least this fraction of its root, or of a quarter of all memory.
LEAST = 0.0005
ROOTS = 500  # Number of roots that have fields, the largest first.
LEAK_HEADS = 2000  # Number of leaked blocks that have fields.


def write(session: Session, args: argparse.Namespace, form: str) -> WrittenFile:
    """Write the retained trees of the roots that `roots` shows."""
    depth = max(args.depth, DEPTH)
    if args.lost:
        tree = build_leaked_tree(session)
        rows, rest = _list_lost(TreeBuilder(session, ContainerReader(session), tree, depth, FIELDS, LEAST), args.limit or LEAK_HEADS)
        title = "Leaks, with the memory reachable only from each"
    else:
        reader, named, tree = build_owner_tree(session)
        builder, rest = TreeBuilder(session, reader, tree, depth, FIELDS, LEAST), Totals(0, 0)
        title = "Memory retained by roots"
        if args.subject is None:
            rows = build_root_rows(builder, named.all, tree.by_root(), ROOTS)
            rows.append(build_shared_row(builder, named, FIELDS, tree.spread(SHARED, 1)))
            # Roots that retain the same objects would make a heap look larger than it is.
            rows += [_heap(heap) for heap in all_heaps(session, ROOTS) if heap.shared_objects is not None]
        else:
            title = f"Memory retained by {args.subject}"
            heaps = heaps_of_subject(session, named, args.subject, 0)
            rows = _one(builder, named, args.subject) if not heaps else list(map(_heap, heaps))
    profile = of_retained(f"{title}: {session.target.description}", rows, rest)
    return write_profile(session, of_target(profile, session.target), args.output, form)


def _one(builder: TreeBuilder, named: Owners, word: str) -> list[RetainedNode]:
    """Return the roots with this name, or the block or root at this address."""
    numbers: Sequence[Optional[int]] = match_owners(named.all, word)
    if not numbers:
        address = parse_address(word)
        index = builder.reader.blocks.find(address)
        if index >= 0:
            return [builder.of_block(index)]
        numbers = [named.at(address)]
    return [builder.of_root(named.all[number], root_node(number)) for number in numbers if number is not None]


def _heap(heap: ManagedHeap) -> RetainedNode:
    """Return what the roots of a managed heap retain, by type."""
    made = RetainedNode(f"{heap.runtime}'s heap", Totals(0, 0), "root")
    for root in heap.roots:
        row = RetainedNode(root.name, Totals(root.objects, root.bytes), "root")
        row.fields = [RetainedNode(one.type, Totals(one.objects, one.bytes), "field") for one in root.types]
        made.fields.append(row)
    if heap.shared_objects and heap.shared_bytes:
        made.fields.append(RetainedNode(SHARED_NAME, Totals(heap.shared_objects, heap.shared_bytes), "shared"))
    made.totals = Totals.sum_of(row.totals for row in made.fields)
    return made


def _list_lost(builder: TreeBuilder, limit: int) -> tuple[Sequence[RetainedNode], Totals]:
    """Return a row for each of the first leak heads, and the memory that the other ones retain."""
    rows = []
    for row, kind in list_leak_heads(builder, limit):
        row.name = f"{kind}: {row.name}"
        rows.append(row)
    listed, total = Totals.sum_of(row.totals for row in rows), builder.tree.total()
    return rows, total.minus(listed)
