"""The `refs ADDR` command: list all words in the process that refer to an address."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial

from findleaks.answers.references import referrers
from findleaks.arg_types import parse_address
from findleaks.commands import Invocation, command
from findleaks.commands.limits import add_limit
from findleaks.commands.options import add_debug_types
from findleaks.commands.result import Plain
from findleaks.formatting import format_count, hanging, number, table
from findleaks.results.references import Reference, References
from findleaks.session import Session

NONE = "–"  # The text of a cell without a value.


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "address", metavar="ADDR", help="a block, or an object of Go, Java, Node or Ruby (any address inside it), or any other address"
    )
    parser.add_argument("--exact", action="store_true", help="only words equal to ADDR, not other references to its block")
    add_limit(parser, "references", 100, searched=True)
    add_debug_types(parser)


@command(arguments=_arguments, positional="address")
def refs(session: Session, args: argparse.Namespace) -> Plain:
    """List every aligned word of the process that refers to ADDR, or to the block that contains it.
    Words are in other blocks, in root memory, in registers, or in the kernel (epoll data, timers,
    queued signals). Words in freed blocks, dead stack and dead parts of managed heaps are marked:
    they do not keep the block reachable. For an object of Go, Java, Node or Ruby, list the fields
    of other objects, and the roots of the runtime (global or static variables, stacks), that refer
    to it."""
    address = parse_address(args.address)
    found = referrers(session, address, args.exact, args.limit)
    return Plain(session, "refs", found, partial(_text, found))


def _text(found: References, width: int, invocation: Invocation) -> Iterator[str]:
    target = found.target
    yield from hanging(f"{hex(target.address)}  ", target.text, width)
    yield ""
    rows = [_row(one) for one in found.references]
    if rows:
        yield from table(("WORD AT", "POINTS TO", "IN"), rows, (), width, cut=2)
        yield ""
    what = "blocks" if target.object is None else "objects"
    more = f", {number(found.count - len(rows))} more not shown (--limit 0)" if found.count > len(rows) else ""
    yield f"  {format_count(found.count, 'reference')}, {number(found.live)} of them in roots or {what} in use{more}"
    if target.object is not None or (target.block is not None and target.block.kind):
        yield from invocation.next(f"path {hex(target.address)}")


def _row(reference: Reference) -> tuple[str, str, str]:
    if reference.origin is not None:
        where, what = hex(reference.address) if reference.address else NONE, reference.why or reference.origin.text
        what = f"{reference.disguise}; {what}" if reference.disguise else what
    elif reference.kernel:
        where, what = "kept by the kernel", reference.kernel
    else:
        where, what = f"{'dead ' if reference.why else ''}register {reference.register}", f"thread {reference.thread}"
    return where, hex(reference.value), what if reference.live else f"(keeps nothing alive) {what}"
