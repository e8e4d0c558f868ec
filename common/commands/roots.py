"""`roots`: which variables, stacks and mappings retain the memory, and through which fields."""

from __future__ import annotations

import argparse
from functools import partial

from findleaks.answers.roots import DEPTH, all_roots, leaked_roots, one_root
from findleaks.arg_types import parse_count
from findleaks.audit.retained_roots import EXPANDED
from findleaks.commands import command
from findleaks.commands.limits import in_text
from findleaks.commands.output import STACKS, add_output, output_format
from findleaks.commands.result import Plain
from findleaks.commands.roots_text import text
from findleaks.errors import UsageError
from findleaks.session import Session

LIMIT = 10  # roots printed as text without --limit


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "subject", nargs="?", metavar="NAME|ADDR", help="one root (its name; * and ? allowed), or the block that holds ADDR"
    )
    parser.add_argument("--depth", type=parse_count, default=DEPTH, help=f"levels of fields below each root ({DEPTH}; 0: none)")
    what = f"roots, and fields of each, to print ({LIMIT}; JSON: all roots, fields of the first {LIMIT}); 0: all"
    parser.add_argument("--limit", type=parse_count, help=what)
    add_output(parser, "the whole tree of what is shown", STACKS)
    lost = f"print leak heads instead, with the memory reachable only from each; fields of the largest {EXPANDED}"
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
        if args.subject is not None:
            raise UsageError("--lost shows what nothing holds: it takes no NAME or ADDR")
        found, shown = leaked_roots(session, args.depth, limit)
        return Plain(session, "roots", found, partial(text, shown))
    if args.subject is not None:
        found, shown = one_root(session, args.subject, args.depth, limit)
        return Plain(session, "roots", found, partial(text, shown))
    found, shown = all_roots(session, args.depth, limit, args.limit or 0)
    return Plain(session, "roots", found, partial(text, shown), 0 if len(session.directory.blocks) else 2)
