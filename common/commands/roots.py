"""The `roots` command: print which variables, stacks and mappings retain memory, and through which
fields."""

from __future__ import annotations

import argparse
from functools import partial

from findleaks.answers.roots import DEPTH, all_roots, leaked_roots, one_root
from findleaks.arg_types import parse_count
from findleaks.audit.retained_roots import EXPANDED
from findleaks.commands import command
from findleaks.commands.limits import in_text
from findleaks.commands.options import add_debug_types
from findleaks.commands.output import STACKS, add_output, output_format
from findleaks.commands.result import Plain
from findleaks.commands.roots_text import text
from findleaks.errors import UsageError
from findleaks.session import Session

LIMIT = 10  # Maximum number of roots printed as text without --limit.


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "subject", nargs="?", metavar="NAME|ADDR", help="one root (its name; * and ? allowed), or the block that contains ADDR"
    )
    parser.add_argument("--depth", type=parse_count, default=DEPTH, help=f"levels of fields below each root ({DEPTH}; 0: none)")
    what = f"roots, and fields of each, to print ({LIMIT}; JSON: all roots, fields of the first {LIMIT}); 0: all"
    parser.add_argument("--limit", type=parse_count, help=what)
    add_output(parser, "the whole tree of the printed roots", STACKS)
    lost = f"print leak heads instead, with the memory reachable only from each; fields of the largest {EXPANDED}"
    parser.add_argument("--lost", action="store_true", help=lost)
    add_debug_types(parser)


@command(arguments=_arguments, subject="subject")
def roots(session: Session, args: argparse.Namespace) -> Plain:
    """List what each root retains: the blocks that become unreachable without this root. A root is
    a global variable, a thread-local variable, a mapping, or a stack frame. Below each root are its
    fields, each with the memory that is reachable only through this field. Containers are
    recognised by their structure, without symbols: std::map, std::unordered_map, vectors, lists,
    hash tables.

    Memory reachable from a variable is attributed to it, even if a stack or a register also refers
    to it. Stacks and registers retain what is reachable from no variable and no mapping. Memory
    reachable from several variables is shared: no single variable retains it.

    NAME shows one root in more depth. ADDR shows a block, leaked or not: what it retains, and what
    retains it.
    --lost lists leak heads by the memory that is reachable only from each.

    For Go and a JVM, the first table lists the roots of the managed heap, such as static variables,
    goroutines and class loaders, with the objects that each retains."""
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
            raise UsageError("--lost lists all leak heads: it takes no NAME or ADDR")
        found, shown = leaked_roots(session, args.depth, limit)
        return Plain(session, "roots", found, partial(text, shown))
    if args.subject is not None:
        found, shown = one_root(session, args.subject, args.depth, limit)
        return Plain(session, "roots", found, partial(text, shown))
    found, shown = all_roots(session, args.depth, limit, args.limit or 0)
    return Plain(session, "roots", found, partial(text, shown), 0 if len(session.directory.blocks) or found.heaps else 2)
