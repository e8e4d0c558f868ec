"""`roots`: which variables, stacks and mappings retain the memory, and through which fields."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from typing import Any

from findleaks.arg_types import address_word, count_word
from findleaks.audit.address_info import Describer
from findleaks.audit.containers.reader import Reader
from findleaks.audit.holders import holders
from findleaks.audit.owner import WORDS
from findleaks.audit.owners import Owners
from findleaks.audit.retained_roots import EXPANDED, holder_phrase, lost_leaders, lost_tree, matching_owners, shared_row
from findleaks.audit.retained_tree import Contents, RetainedNode, TreeBuilder, root_rows
from findleaks.commands import command
from findleaks.commands.limits import first, in_text
from findleaks.commands.output import STACKS, add_output, output_format
from findleaks.commands.result import Plain, fields
from findleaks.commands.roots_text import Shown, text
from findleaks.engine.dominators import SHARED, root_node
from findleaks.engine.terms import Totals
from findleaks.errors import UsageError
from findleaks.session import Session

LIMIT, DEPTH = 10, 2  # roots, and levels of fields below each, shown as text without options
LEAST = 0.02  # least share of its root that gives a field its own row, if all roots are shown
SIZES = 20  # block sizes listed in the JSON of a row, at most


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "subject", nargs="?", metavar="NAME|ADDR", help="one root (its name; * and ? allowed), or the block that holds ADDR"
    )
    parser.add_argument("--depth", type=count_word, default=DEPTH, help=f"levels of fields below each root ({DEPTH}; 0: none)")
    what = f"roots, and fields of each, to print ({LIMIT}; JSON: all roots, fields of the first {LIMIT}); 0: all"
    parser.add_argument("--limit", type=count_word, help=what)
    add_output(parser, "the whole tree of what is shown", STACKS)
    lost = f"what nothing holds instead: each lost block that others hang from; fields of the largest {EXPANDED}"
    parser.add_argument("--lost", action="store_true", help=lost)


@command(arguments=_arguments, subject="subject")
def roots(session: Session, args: argparse.Namespace) -> Plain:
    """Show what each root retains: the blocks that would become unreachable if it alone went. A
    root is a global variable, a thread-local one, a mapping, or a frame of a stack. Below it are
    its fields, with what is reached through each of them only; containers are identified by their
    structure, without symbols: std::map, std::unordered_map, vectors, lists, hash tables.

    What a variable leads to is the variable's, even where a stack or a register points to it too;
    stacks and registers retain what no variable and no mapping leads to. What several variables
    lead to is shared: no single one retains it.

    With NAME, one root in more depth; with ADDR, a block: what it retains, and who holds it. With
    --lost, leaks by what hangs from them."""
    form = output_format(args, STACKS)
    result = _result(session, args)
    if form:
        from findleaks.commands.roots_file import write

        result.written = write(session, args, form)
    return result


def _result(session: Session, args: argparse.Namespace) -> Plain:
    limit = in_text(args.limit, LIMIT)
    if args.lost:
        return _lost(session, Reader(session), args, limit)
    reader, named, tree = holders(session)
    if args.subject is not None:
        return _one(named, TreeBuilder(session, reader, tree, args.depth, limit), args.subject, limit)
    builder = TreeBuilder(session, reader, tree, args.depth, limit, LEAST)
    rows = root_rows(builder, named.all, tree.by_root(), limit)
    spread = tree.spread(SHARED, SIZES)
    shared = shared_row(builder, named, limit, spread)
    shown = Shown(rows, shared, tree.total(), limit)
    body = {
        "total": _totals(tree.total()),
        "roots": [_root(row, named) for row in first(rows, args.limit)],
        "more": _retained(Totals.sum_of(row.totals for row in rows[args.limit or len(rows) :])),
        "shared": {
            **_retained(shared.totals),
            "sizes": [{"size": one.size, "blocks": one.children, **_retained(Totals(one.blocks, one.bytes))} for one in spread],
            "children": [_row(row) for row in shared.fields],
        },
    }
    return Plain(session, "roots", body, partial(text, shown), 0 if len(reader.blocks) else 2)


def _one(named: Owners, builder: TreeBuilder, word: str, limit: int) -> Plain:
    """Result for one root or one block."""
    session = builder.session
    numbers = matching_owners(named.all, word)
    index = -1
    if not numbers:
        address = _address(word)
        index = session.directory.blocks.find(address)
        owner = named.at(address) if index < 0 else None
        if index < 0 and owner is None:
            raise UsageError(f"{address:#x} is in no block and no root: {Describer(session).answer(address).phrase}")
        numbers = [owner] if owner is not None else []
    totals = builder.tree.by_root()
    numbers = sorted(numbers, key=lambda n: (-totals[n].bytes, n))
    held = ""
    if index >= 0:
        rows = [builder.of_block(index)]
        held = holder_phrase(builder, named, index)
        bodies = [{**_row(rows[0]), "address": hex(rows[0].address), "holder": held or None}]
    else:
        rows = [builder.of_root(named.all[n], root_node(n)) for n in first(numbers, limit)]
        bodies = [_root(row, named) for row in rows]
    shown = Shown(rows, None, builder.tree.total(), limit, held, len(numbers) - len(rows) if index < 0 else 0)
    body = {"total": _totals(builder.tree.total()), "roots": bodies}
    return Plain(session, "roots", body, partial(text, shown))


def _address(word: str) -> int:
    try:
        return address_word(word)
    except UsageError:
        raise UsageError(f"no root has the name {word!r}, and it is no address: `roots --limit 0` lists all") from None


def _lost(session: Session, reader: Reader, args: argparse.Namespace, limit: int) -> Plain:
    """Result for --lost: each leader with what it retains."""
    if args.subject is not None:
        raise UsageError("--lost shows what nothing holds: it takes no NAME or ADDR")
    tree = lost_tree(session)
    leaders = lost_leaders(TreeBuilder(session, reader, tree, args.depth, limit), limit)
    counts = tree.by_root()
    listed = Totals.sum_of(row.totals for row, _ in leaders)
    rest = Totals(tree.total().blocks - listed.blocks, tree.total().bytes - listed.bytes)
    body = {
        "total": _totals(tree.total()),
        "definite": _totals(counts[0]),
        "possible": _totals(counts[1]),
        "roots": [{**_row(row), "address": hex(row.address), "kind": kind} for row, kind in leaders],
        "more": _retained(rest),
    }
    for row, kind in leaders:
        row.name = f"{kind}: {row.name}"
    shown = Shown([row for row, _ in leaders], None, tree.total(), limit, lost=True, rest=rest)
    return Plain(session, "roots", body, partial(text, shown))


def _totals(totals: Totals) -> dict[str, int]:
    return fields(totals, "blocks", "bytes")


def _retained(totals: Totals) -> dict[str, int]:
    return {"retained_blocks": totals.blocks, "retained_bytes": totals.bytes}


def _root(row: RetainedNode, named: Owners) -> dict[str, Any]:
    owner = row.owner
    assert owner is not None
    address = hex(owner.ranges[0].start) if owner.ranges else None
    body = {**_row(row), "sort": WORDS[owner.sort], "thread": owner.thread or None, "address": address}
    if not owner.apart:
        return body
    return {**body, "objects": {"runtime": owner.where.removesuffix(" variable"), **_counted(owner.objects)}}


def _counted(objects: Totals) -> dict[str, int]:
    return {"count": objects.blocks, "bytes": objects.bytes}


def _row(row: RetainedNode) -> dict[str, Any]:
    made: dict[str, Any] = {"name": row.name, **_retained(row.totals)}
    if row.what:
        made["what"] = row.what
    if row.offset is not None:
        made["offset"] = row.offset
    if row.sort == "field":
        made["address"] = hex(row.address) if row.address else None
        made["sizes"] = [{"size": size, "blocks": count} for size, count in row.sizes[:SIZES]]
    if row.alike is not None:
        made["alike"] = {"fields": row.alike.fields, "least_blocks": row.alike.least or None, "most_blocks": row.alike.most or None}
    made["container"] = _container(row.contents) if row.contents is not None else None
    made["children"] = [_row(child) for child in row.fields]
    made["more"] = {"fields": row.left, **_retained(row.more)}
    made["shared"] = _retained(row.shared)
    if row.holders:
        made["holders"] = row.holders
    return made


def _container(contents: Contents) -> Mapping[str, object]:
    made = contents.container
    return {
        **fields(made, "what", "length", "unit"),
        "recorded_length": made.recorded,
        "nodes": contents.nodes,
        "node_sizes": [contents.least, contents.most] if made.nodes else None,
        "tables": [hex(table) for table in made.tables],
        "others": [fields(kept, "size", "blocks", "strings") for kept in contents.kept[:SIZES]],
        "problem": made.problem or None,
    }
