"""`caches`: size classes of each allocator: in use, in thread caches, free; as mdb's ::umastat."""

from __future__ import annotations

import argparse
from functools import partial

from findleaks.answers.caches import describe_caches
from findleaks.arg_types import size_range
from findleaks.audit.block_rows import allocator_named
from findleaks.audit.caches import CACHE_KEYS
from findleaks.commands import command
from findleaks.commands.caches_text import MANY, text
from findleaks.commands.limits import add_limit
from findleaks.commands.options import add_allocator
from findleaks.commands.result import Plain, blocks_status
from findleaks.session import Session


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--by-arena", action="store_true", help="what each arena holds, and every size class of each arena")
    parser.add_argument("--by-thread", action="store_true", help="what each thread keeps in its cache, in all and of every size class")
    parser.add_argument("--sort", choices=tuple(CACHE_KEYS), default="size", help="rows by size (default), or those first that hold most")
    add_allocator(parser)
    parser.add_argument("--sites", action="store_true", help="the stacks that allocated the blocks of each size class, where recorded")
    parser.add_argument("--size", metavar="A-B", help="with --sites: only of classes with blocks of these sizes, e.g. 48, 1k-4k")
    add_limit(parser, "rows of a table", f"all, {MANY} by arena or thread")


@command(arguments=_arguments)
def caches(session: Session, args: argparse.Namespace) -> Plain:
    """Show what every size class of every allocator holds: blocks in use, in thread caches (freed,
    kept by a thread for itself) and free; the memory they take, headers included; and which part of
    it is in use. USED is by bytes. Allocations and failures are shown where the allocator counts
    them.

    Memory that is free and not returned is not leaked: the allocator uses it for later requests,
    and until then it mostly stays with the process (which of its pages are resident is not
    looked at). Sizes are usable bytes; glibc's from 1 KiB up are grouped in bands. Spare is
    memory that is not cut up into blocks, such as glibc's top.

    With --sites the blocks in use of each size class are listed by the stacks that allocated them,
    as a heap profiler or the like recorded them in the process."""
    allocator = allocator_named(session, args.allocator)
    sizes = size_range(args.size) if args.sites and args.size else None
    answer = describe_caches(session, allocator, args.by_arena, args.sort, args.limit, args.sites, sizes)
    found, rows = answer.holdings, answer.sites
    problems = [problem for holding in found for problem in holding.problems]
    if args.sites:
        # few processes have recorded stacks
        from findleaks.commands.caches_sites import sites_text

        made = partial(sites_text, session, found, rows, args)
        return Plain(session, "caches", answer.result, made, blocks_status(session), further=problems)
    return Plain(session, "caches", answer.result, partial(text, found, args), blocks_status(session), further=problems)
