"""The `path ADDR` command: print the shortest chain of references from a root to a block. If the
block is leaked, the chain begins at its leak head."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial

from findleaks.answers.path_steps import STEPS
from findleaks.answers.paths import FoundPath, find_path
from findleaks.arg_types import parse_address, parse_count
from findleaks.commands import Invocation, command
from findleaks.commands.options import add_debug_types
from findleaks.commands.result import Plain
from findleaks.formatting import format_count, hanging
from findleaks.session import Session


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", metavar="ADDR", help="any address inside a block, or inside an object of Go, Java, Node or Ruby")
    parser.add_argument(
        "--limit", type=parse_count, default=STEPS, help=f"steps to show; the middle of a longer chain is left out ({STEPS}; 0: all)"
    )
    add_debug_types(parser)


@command(arguments=_arguments, positional="address")
def path(session: Session, args: argparse.Namespace) -> Plain:
    """Show the shortest chain of references from a root (a global variable, a stack, a register, a
    mapping) to the block that contains ADDR. For a leaked block, show the chain from its leak head:
    the leaked block from which it is reachable. For an object of Go, Java, Node or Ruby, show the
    chain from a root of the runtime, or from a variable of Ruby."""
    found = find_path(session, parse_address(args.address), args.limit)
    return Plain(session, "path", found.result, partial(_text, found))


def _text(found: FoundPath, width: int, invocation: Invocation) -> Iterator[str]:
    path, target = found.result, found.result.target
    if found.from_head:
        yield "leaked: no root reaches it; it is reachable from the leak head"
    for count, step in enumerate([*path.steps, None]):
        if path.skipped is not None and count == path.skipped.after:
            yield f"  … {format_count(path.skipped.steps, 'more step')} (--limit 0 shows all)"
        if step is None:
            break
        where = f"{hex(step.address)}  " if step.address else ""
        into = f", {step.offset:,} bytes into it" if step.offset else ""
        member = step.place.member if step.place is not None and step.place.block is not None else None
        yield f"{where}{member} ({step.origin})" if member else f"{where}{step.origin}"
        into += f" ({step.disguise})" if step.disguise else ""
        yield f"  → {hex(step.value - step.offset)}{into}"
    yield from hanging(f"{hex(target.address)}  ", target.text, width)
    if not path.steps:
        is_head = target.block is not None and target.block.kind == "definite"
        more = ": it is not collected yet" if target.object is not None and target.object.live is False else ""
        yield f"  no root reaches it{': it is a leak head' if is_head else more}"
        yield from invocation.next(f"refs {hex(target.address)}")
