"""The `whatis ADDR…` command: describes what is at an address."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial

from findleaks.answers.addresses import Identified, identify
from findleaks.arg_types import parse_address
from findleaks.audit.typed_places import iterate_lines
from findleaks.commands import Invocation, command
from findleaks.commands.result import Plain
from findleaks.results.addresses import Addresses
from findleaks.session import Session


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("addresses", metavar="ADDR", nargs="+", help="an address: 0x55d0c0a012a0, or a decimal number")


@command(arguments=_arguments, positional="addresses", heapless=True)
def whatis(session: Session, args: argparse.Namespace) -> Plain:
    """Describe what is at each address: a block (with state, kind, type and owner), a place on a
    thread's stack, a module's symbol, allocator metadata, or a mapping. An address inside a block
    identifies the block like its start. The call stack that allocated the block is printed if a
    heap profiler recorded it."""
    answers = identify(session, [parse_address(word) for word in args.addresses])
    return Plain(session, "whatis", Addresses([one.result for one in answers]), partial(_text, session, answers))


def _text(session: Session, answers: Sequence[Identified], width: int, invocation: Invocation) -> Iterator[str]:
    for answer, result in answers:
        yield f"{answer.address:#x}  {answer.phrase}"
        yield from iterate_lines(result.members or ())
        for site in answer.sites:
            from findleaks.commands.site_text import site_lines

            yield from site_lines(session, site, width)
        if answer.block is not None and answer.block.kind:
            yield from invocation.next(width, f"path {answer.block.address:#x}", f"refs {answer.block.address:#x}")
