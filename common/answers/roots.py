"""Answer the question "what retains the memory?" with all roots and their fields, a single root, or
leak heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional, cast

from findleaks.arg_types import parse_address
from findleaks.audit.address_info import Describer
from findleaks.audit.container_samples import STRINGS
from findleaks.audit.containers.reader import ContainerReader
from findleaks.audit.fields import NOTHING
from findleaks.audit.owner_tree import build_owner_tree
from findleaks.audit.owners import Owners
from findleaks.audit.retained_roots import (
    build_leaked_tree,
    build_root_rows,
    build_shared_row,
    describe_leaked_retainer,
    describe_retainer,
    is_leaked,
    list_leak_heads,
    match_owners,
)
from findleaks.audit.retained_rows import Contents, RetainedBlocks, RetainedNode
from findleaks.audit.retained_tree import TreeBuilder
from findleaks.engine.dominators import SHARED, root_node
from findleaks.engine.terms import State, Totals
from findleaks.errors import UsageError
from findleaks.results.amounts import Amount
from findleaks.results.roots import (
    Alike,
    BlocksOfSize,
    Container,
    ContainerBlocks,
    ManagedHeap,
    ManagedObjects,
    Retained,
    RetainedAmount,
    RetainedBlock,
    RetainedFields,
    RetainedLeak,
    RetainedRoot,
    Roots,
    Shared,
    SharedSize,
)
from findleaks.session import Session

LEVELS = 10  # rows of each level whose fields are examined
DEPTH = 2  # levels of fields below each root
# If all roots are shown, a field gets a row if it has at least this fraction of its root.
LEAST = 0.02
SIZES = 20  # maximum number of block sizes that are listed for a row


@dataclass
class Shown:
    """The analysis that the result is computed from, for text. `heaps`: managed heaps whose roots
    have names."""

    rows: Sequence[RetainedNode]
    shared: Optional[RetainedNode]
    total: Totals
    limit: int
    held: str = ""  # the root or block that retains the requested block
    left: int = 0  # number of roots that match a pattern and are not shown
    lost: bool = False
    rest: Totals = NOTHING
    heaps: Sequence[ManagedHeap] = ()
    depth: int = DEPTH  # levels of fields below each row


def all_roots(session: Session, depth: int = DEPTH, expanded: int = LEVELS, most: int = 0) -> tuple[Roots, Shown]:
    """Return every root, the largest first. `most`: maximum number of roots (0: all). Only the
    first `expanded` roots have fields."""
    reader, named, tree = build_owner_tree(session)
    builder = TreeBuilder(session, reader, tree, depth, expanded, LEAST)
    rows = build_root_rows(builder, named.all, tree.by_root(), expanded)
    spread = tree.spread(SHARED, SIZES)
    shared = build_shared_row(builder, named, expanded, spread)
    listed = rows[:most] if most else rows
    found = Roots(
        Amount.of(tree.total()),
        roots=[_root(row) for row in listed],
        more=RetainedAmount.of(Totals.sum_of(row.totals for row in rows[len(listed) :])),
        shared=Shared(
            shared.totals.blocks,
            shared.totals.bytes,
            [SharedSize(one.size, one.children, one.blocks, one.bytes) for one in spread],
            [_make_retained(row) for row in shared.fields],
        ),
        heaps=list_heaps(session, expanded, most),
    )
    return found, Shown(rows, shared, tree.total(), expanded, heaps=found.heaps, depth=depth)


def one_root(session: Session, word: str, depth: int = DEPTH, limit: int = LEVELS) -> tuple[Roots, Shown]:
    """Return the roots whose name is `word` or matches it, or the block, object or root at that
    address. Raises UsageError if there is none."""
    reader, named, tree = build_owner_tree(session)
    builder = TreeBuilder(session, reader, tree, depth, limit)
    total = Amount.of(tree.total())
    heaps = _heaps_of_subject(session, named, word, limit)
    numbers, index = _subject(session, named, word) if not heaps else (match_owners(named.all, word), -1)
    if index >= 0 and is_leaked(session, tree, index):
        return _one_leaked(session, index, depth, limit)
    if index >= 0:
        row, held = builder.of_block(index), describe_retainer(builder, named, index)
        found = Roots(total, roots=[RetainedBlock(**_fields(row), holder=held or None)])
        return found, Shown([row], None, tree.total(), limit, held)
    totals = tree.by_root()
    numbers = sorted(numbers, key=lambda n: (-totals[n].bytes, n))
    rows = [builder.of_root(named.all[n], root_node(n)) for n in (numbers[:limit] if limit else numbers)]
    found = Roots(total, roots=[_root(row) for row in rows], heaps=heaps)
    return found, Shown(rows, None, tree.total(), limit, left=len(numbers) - len(rows), heaps=heaps, depth=depth)


def _one_leaked(session: Session, index: int, depth: int, limit: int) -> tuple[Roots, Shown]:
    """Return a leaked block, with the leaked blocks that it retains."""
    tree = build_leaked_tree(session)
    builder = TreeBuilder(session, ContainerReader(session), tree, depth, limit)
    row, held = builder.of_block(index), describe_leaked_retainer(builder, index)
    definite, possible, *_ = map(Amount.of, tree.by_root())
    kind = session.graph().kind(index).name.lower()
    block = RetainedBlock(**_fields(row), holder=held or None, kind=cast(Any, kind))
    found = Roots(Amount.of(tree.total()), definite, possible, [block])
    row.name = f"{kind}: {row.name}"
    return found, Shown([row], None, tree.total(), limit, held, lost=True)


# Few processes have managed heaps, so the module is imported where it is needed.
def list_heaps(session: Session, expanded: int, most: int) -> list[ManagedHeap]:
    """Return the managed heaps whose roots have names; see answers.heap_roots.all_heaps."""
    if not session.runtimes:
        return []
    from findleaks.answers.heap_roots import all_heaps

    return all_heaps(session, expanded, most)


def _heaps_of_subject(session: Session, named: Owners, word: str, limit: int) -> list[ManagedHeap]:
    if not session.runtimes:
        return []
    from findleaks.answers.heap_roots import heaps_of_subject

    return heaps_of_subject(session, named, word, limit)


def _subject(session: Session, named: Owners, word: str) -> tuple[list[int], int]:
    """Return the numbers of the roots that `word` names, and the index of the block; -1 if it names
    no block."""
    numbers = match_owners(named.all, word)
    if numbers:
        return numbers, -1
    address = _address(word)
    index = session.directory.blocks.find(address)
    if index >= 0 and session.directory.blocks.state(index) is not State.IN_USE:
        raise UsageError(f"{address:#x} is in a block that is not in use, and retains nothing: {Describer(session).answer(address).phrase}")
    owner = named.at(address) if index < 0 else None
    if index < 0 and owner is None:
        raise UsageError(f"{address:#x} is in no block and no root: {Describer(session).answer(address).phrase}")
    return [owner] if owner is not None else [], index


def _address(word: str) -> int:
    try:
        return parse_address(word)
    except UsageError:
        raise UsageError(f"{word!r} is neither the name of a root nor an address; `roots --limit 0` lists all roots") from None


def leaked_roots(session: Session, depth: int = DEPTH, limit: int = LEVELS) -> tuple[Roots, Shown]:
    """Return the leak heads and what each retains, the largest first. `limit`: number of leak heads
    (0: all)."""
    tree = build_leaked_tree(session)
    heads = list_leak_heads(TreeBuilder(session, ContainerReader(session), tree, depth, limit), limit)
    definite, possible, *_ = tree.by_root()
    listed = Totals.sum_of(row.totals for row, _ in heads)
    rest = tree.total().minus(listed)
    found = Roots(
        Amount.of(tree.total()),
        Amount.of(definite),
        Amount.of(possible),
        [RetainedLeak(**_fields(row), kind=cast(Any, kind)) for row, kind in heads],
        RetainedAmount.of(rest),
    )
    for row, kind in heads:
        row.name = f"{kind}: {row.name}"
    return found, Shown([row for row, _ in heads], None, tree.total(), limit, lost=True, rest=rest)


def _root(row: RetainedNode) -> RetainedRoot:
    owner = row.owner
    assert owner is not None
    objects = (
        ManagedObjects(owner.where.removesuffix("s").removesuffix(" variable"), owner.objects.blocks, owner.objects.bytes)
        if owner.apart
        else None
    )
    found = {**_fields(row), "address": owner.ranges[0].start if owner.ranges else None}
    return RetainedRoot(**found, sort=cast(Any, owner.sort_word), thread=owner.thread or None, objects=objects)


def _make_retained(row: RetainedNode) -> Retained:
    return Retained(**_fields(row))


def _fields(row: RetainedNode) -> dict[str, Any]:
    """Return the keyword arguments for Retained."""
    alike = row.alike
    return {
        "name": row.name,
        "retained_blocks": row.totals.blocks,
        "retained_bytes": row.totals.bytes,
        "what": row.what or None,
        "offset": row.offset,
        "address": row.address or None,
        "sizes": [BlocksOfSize(*one) for one in row.sizes[:SIZES]] if row.sort == "field" else None,
        "alike": None if alike is None else Alike(alike.fields, alike.least or None, alike.most or None),
        "container": None if row.contents is None else _container(row.contents),
        "children": [_make_retained(child) for child in row.fields],
        "more": RetainedFields(row.left, row.more.blocks, row.more.bytes),
        "shared": RetainedAmount.of(row.shared),
        "shared_children": tuple(_make_retained(one) for one in row.shared_rows),
        "holders": tuple(row.holders),
    }


def _container(contents: Contents) -> Container:
    made = contents.container
    return Container(
        made.what,
        made.length,
        made.unit,
        recorded_length=made.recorded,
        nodes=contents.nodes,
        node_sizes=(contents.least, contents.most) if made.nodes else None,
        tables=tuple(made.tables),
        others=[_container_blocks(kept) for kept in contents.kept[:SIZES]],
        problem=made.problem or None,
    )


def _container_blocks(kept: RetainedBlocks) -> ContainerBlocks:
    is_text = kept.type == STRINGS
    return ContainerBlocks(kept.size, kept.blocks, is_text, kept.type or None if not is_text else None)
