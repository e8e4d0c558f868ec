"""Build rows of `roots`: memory that several roots retain together, roots that reach a block, and
leak heads."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Sequence

from findleaks.audit.owner import Owner
from findleaks.audit.owners import Owners
from findleaks.audit.references import find_root_references
from findleaks.audit.retained_rows import RetainedNode
from findleaks.audit.retained_tree import TreeBuilder
from findleaks.audit.similar_blocks import UNTYPED
from findleaks.engine.dominators import SHARED, SHARED_NAME, Dominators, Spread, node_root, root_node
from findleaks.engine.terms import Kind, Totals
from findleaks.formatting import blocks, size, some
from findleaks.session import Session
from findleaks.wildcards import matches

# A shared block that retains fewer blocks may be a node of a list, which gets a row instead
LONG = 16
SEARCHED = 5  # blocks whose roots are looked up at most; each takes a search of all root memory

MANY, PART = 100, 0.1
"""Shared blocks of one size form one row if there are at least MANY of them, and if together they
retain the fraction PART of the shared memory."""

FIRST = 3  # sizes with the most bytes; they form a row even if they retain only a quarter of PART

SAMPLED, _EXAMINED = 16, 1 << 13
"""SAMPLED: number of shared blocks whose types are compared to name a row. _EXAMINED: number of
blocks that are searched for these shared blocks."""

EXPANDED = 256
"""Leak heads that are shown with their fields.
Each takes a millisecond, and a process may have a million leak heads."""

MAX_REFERRERS, FAR = 100, 100
"""Maximum number of referrers of a shared block that are followed, and of steps from each up the
dominator tree."""


def build_root_rows(builder: TreeBuilder, owners: Sequence[Owner], totals: Sequence[Totals], expanded: int) -> list[RetainedNode]:
    """Return rows of the roots that retain anything, the largest first.
    `expanded`: the number of rows that have their fields (0: all)."""
    order = sorted((n for n in range(len(owners)) if totals[n].blocks), key=lambda n: (-totals[n].bytes, n))
    return [builder.of_root(owners[n], root_node(n), not expanded or at < expanded) for at, n in enumerate(order)]


def build_shared_row(builder: TreeBuilder, named: Owners, limit: int, spread: Sequence[Spread]) -> RetainedNode:
    """Return the row of the memory that no root retains alone. It contains rows of the blocks that
    retain most of this memory.
    `spread`: number and bytes of this memory by size of block."""
    tree = builder.tree
    made = RetainedNode(SHARED_NAME, tree.sum_retained(SHARED), "shared")
    found = tree.children(SHARED, limit + 1 if limit else len(builder.reader.blocks))
    lists: list[array[int]] = []
    for child in found[: limit or None]:
        if any(child.block in nodes for nodes in lists):
            continue  # this is another node of a list that already has a row
        row, nodes = builder.of_shared_list(child.block) if len(made.fields) < SEARCHED and child.blocks < LONG else (None, array("I"))
        made.fields.append(row or builder.of_block(child.block, len(made.fields) < 3))
        lists += [nodes] if row is not None else []
        if len(made.fields) <= SEARCHED:
            ends = [child.block, *nodes[-1:]]
            made.fields[-1].holders = list(dict.fromkeys(label for end in ends for label in name_roots_that_reach(builder, named, end)))
    _add_alike_rows(builder, named, made, spread)
    listed = Totals.sum_of(row.totals for row in made.fields)
    made.more = Totals(max(made.totals.blocks - listed.blocks, 0), max(made.totals.bytes - listed.bytes, 0))
    made.left = int(made.more.blocks > 0)
    alike = [one for one in spread if one.children >= MANY and one.bytes >= PART * made.totals.bytes]
    made.what = some([f"{blocks(one.children)} of {size(one.size)} retain {size(one.bytes)}" for one in alike])
    made.address = builder.reader.blocks.address(alike[0].example) if alike else 0
    return made


def _add_alike_rows(builder: TreeBuilder, named: Owners, made: RetainedNode, spread: Sequence[Spread]) -> None:
    """Merge the rows of many blocks of one size into one row. The blocks must together retain the
    fraction PART of the shared memory, or a quarter of it for the FIRST sizes. A block that alone
    retains the fraction PART keeps its row."""
    blocks_, part = builder.reader.blocks, PART * made.totals.bytes
    for at, group in enumerate(sorted(spread, key=lambda one: -one.bytes)):
        least = part if at >= FIRST else part / 4
        if group.children < MANY or group.bytes < least:
            continue
        alike = [row for row in made.fields if blocks_.size(blocks_.find(row.address)) == group.size]
        large = [row for row in alike if row.totals.bytes >= part]
        totals = Totals(group.blocks - sum(row.totals.blocks for row in large), group.bytes - sum(row.totals.bytes for row in large))
        if totals.bytes < least:
            continue
        count = group.children - len(large)
        example, name, spread_out = _name_alike(builder, group, {row.address for row in large})
        row = RetainedNode(f"{count:,} {name}", totals, "block")
        row.address = blocks_.address(example)
        row.what = f"{totals.blocks - count:,} more blocks below them" if totals.blocks > count else ""
        row.holders = _name_roots_of_most(builder, named, spread_out)
        made.fields = [one for one in made.fields if one in large or one not in alike] + [row]
    made.fields.sort(key=lambda row: -row.totals.bytes)


def _name_alike(builder: TreeBuilder, group: Spread, named: Collection[int]) -> tuple[int, str, list[int]]:
    """Return one of the shared blocks of the group's size, a name for these blocks that follows
    their number, and SEARCHED of them that represent all. The name is their type ("of request") if
    the SAMPLED blocks that retain most all have this type; otherwise it is their size ("blocks of
    64 B"), because blocks of one size may have many types. `named`: the addresses of the blocks
    that have rows of their own."""
    blocks_ = builder.reader.blocks
    children = (child.block for child in builder.tree.children(SHARED, _EXAMINED))
    alike = [index for index in children if blocks_.size(index) == group.size and blocks_.address(index) not in named]
    sample = alike[:SAMPLED] or [group.example]
    names = {builder.declared_origin(index).name for index in sample}
    # The first blocks retain most, and may differ from the others.
    alike = alike or sample
    spread_out = sorted({alike[(2 * place + 1) * len(alike) // (2 * SEARCHED)] for place in range(SEARCHED)})
    name = names.pop() if len(names) == 1 else UNTYPED
    return sample[0], f"blocks of {size(group.size)}" if name.startswith(UNTYPED) else f"of {name}", spread_out


def _name_roots_of_most(builder: TreeBuilder, named: Owners, sample: Sequence[int]) -> list[str]:
    """Return labels of the roots that reach more than half of these shared blocks. A root that
    reaches only one of many blocks, perhaps by chance, does not retain the others."""
    counts = Counter(label for index in sample for label in name_roots_that_reach(builder, named, index))
    return [label for label, count in counts.items() if 2 * count > len(sample)]


def match_owners(every: Sequence[Owner], word: str) -> list[int]:
    """Return the numbers of the owners with this name or label.
    If there are none, return the owners whose name or label matches `word` as a pattern, or whose
    name ends in "::" and `word`."""
    exact = [n for n, owner in enumerate(every) if any(word in (one.name, one.label) for one in (owner, *owner.members))]
    if exact:
        return exact
    if any(c in word for c in "*?"):
        names = ((n, one) for n, owner in enumerate(every) for one in (owner, *owner.members))
        return list(dict.fromkeys(n for n, one in names if matches(word, one.name) or matches(word, one.label)))
    return [n for n, owner in enumerate(every) if owner.name.rsplit("::", 1)[-1] == word]


def describe_retainer(builder: TreeBuilder, named: Owners, index: int) -> str:
    """Return what retains a block: the label of a root, or the name and address of a block; "" if
    no root reaches the block."""
    holder = builder.tree.idom(index)
    if holder is None:
        return ""
    if holder == SHARED:
        return "several roots"
    number = node_root(holder)
    return named.all[number].label if number >= 0 else f"{builder.name(holder)} at {builder.reader.blocks.address(holder):#x}"


def is_leaked(session: Session, tree: Dominators, index: int) -> bool:
    """Whether no root of the tree reaches a block, and the block is leaked or possibly lost."""
    return tree.idom(index) is None and session.graph().kind(index) in (Kind.DEFINITE, Kind.INDIRECT, Kind.POSSIBLE)


def describe_leaked_retainer(builder: TreeBuilder, index: int) -> str:
    """Return the name and address of the block that retains a block in the tree of
    build_leaked_tree; "several leaks" if several retain it together; "" for a leak head."""
    holder = builder.tree.idom(index)
    if holder is None or node_root(holder) >= 0:
        return ""
    return "several leaks" if holder == SHARED else f"{builder.name(holder)} at {builder.reader.blocks.address(holder):#x}"


def name_roots_that_reach(builder: TreeBuilder, named: Owners, index: int) -> list[str]:
    """Return labels of the roots that reach a block that no root retains alone.
    These roots have a reference to the block, or retain a block that refers to it. Only those with
    the highest priority among them are named. If there are none, because all blocks that refer to
    it are shared, too, the root of the shortest path to the block is named."""
    path = builder.session.graph().path(index)
    return _name_close_roots(builder, named, index) or (_name_close_roots(builder, named, path[0]) if path else [])


def _name_close_roots(builder: TreeBuilder, named: Owners, index: int) -> list[str]:
    reader = builder.reader
    start = reader.blocks.address(index)
    numbers: list[int] = []
    for reference in find_root_references(builder.session, start, start + max(reader.blocks.size(index), 1)):
        number = named.at(reference.address) if reference.address else None
        numbers += [number] if number is not None else []
    for source in builder.session.references.referrers(index)[:MAX_REFERRERS]:
        holder = builder.tree.idom(source)
        for _ in range(FAR):
            if holder is None or holder < 0:
                break
            holder = builder.tree.idom(holder)
        numbers += [node_root(holder)] if holder is not None and holder < SHARED else []
    first = min((named.priority(number) for number in numbers), default=0)
    return list(dict.fromkeys(named.all[number].label for number in sorted(numbers) if named.priority(number) == first))


def build_leaked_tree(session: Session) -> Dominators:
    """Return the dominator tree of lost blocks. Definitely lost blocks are under root 0, and
    possibly lost blocks under root 1."""
    tree = session.graph().dominators(2, lost=True)
    tree.refer_lost(0, 1)
    return session.compute(tree, "computing retained sizes")


def list_leak_heads(builder: TreeBuilder, limit: int) -> list[tuple[RetainedNode, str]]:
    """Return the leak heads, the largest first. Each has the memory that it retains, and its kind.
    The EXPANDED largest have their fields."""
    most = limit + 1 if limit else len(builder.reader.blocks)
    found = [
        (child, kind) for number, kind in enumerate(("definite", "possible")) for child in builder.tree.children(root_node(number), most)
    ]
    found.sort(key=lambda one: -one[0].bytes)
    return [(builder.of_block(child.block, at < EXPANDED), kind) for at, (child, kind) in enumerate(found[: limit or None])]
