"""The `caches` command: list the size classes of each allocator, like mdb's ::umastat."""

from __future__ import annotations

import argparse
from functools import partial

from findleaks.answers.caches import describe_caches
from findleaks.arg_types import parse_size_range
from findleaks.audit.block_rows import check_allocator_name
from findleaks.audit.caches import CACHE_KEYS
from findleaks.commands import command
from findleaks.commands.caches_text import MANY, text
from findleaks.commands.limits import add_limit
from findleaks.commands.options import add_allocator
from findleaks.commands.result import Plain, blocks_status
from findleaks.session import Session


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--by-arena", action="store_true", help="also list arenas, and the size classes of each arena")
    parser.add_argument("--by-thread", action="store_true", help="list each thread's cache: in all, and by size class")
    parser.add_argument(
        "--sort", choices=tuple(CACHE_KEYS), default="size", help="order of rows: by size class (default), or by this column, largest first"
    )
    add_allocator(parser)
    parser.add_argument("--sites", action="store_true", help="list the recorded call stacks that allocated the blocks of each size class")
    parser.add_argument("--size", metavar="A-B", help="with --sites: only size classes with blocks of these sizes, e.g. 48, 1k-4k")
    add_limit(parser, "rows of a table", f"all, {MANY} by arena or thread")


@command(arguments=_arguments)
def caches(session: Session, args: argparse.Namespace) -> Plain:
    """List the size classes of every allocator: blocks in use, in thread caches (freed by the
    program, cached for one thread) and free; the memory that they take, headers included; and how
    much of this memory is in use. USED is the percentage of bytes. Allocations and failures are
    printed if the allocator counts them.

    Free memory that is not returned is not leaked: the allocator uses it for later requests. Most
    of it usually stays resident; `caches` does not examine which pages are. Sizes are usable bytes.
    glibc's sizes from 1 KiB up are grouped in bands. "Spare" is memory that is not cut into blocks,
    such as glibc's top chunk.

    --sites lists the blocks in use of each size class by the call stacks that allocated them, if a
    heap profiler recorded stacks in the process."""
    allocator = check_allocator_name(session, args.allocator)
    sizes = parse_size_range(args.size) if args.sites and args.size else None
    answer = describe_caches(session, allocator, args.by_arena, args.sort, args.limit, args.sites, sizes)
    found = answer.holdings
    problems = [problem for holding in found for problem in holding.problems]
    if args.sites:
        # Few processes have recorded stacks, so this is imported here.
        from findleaks.commands.caches_sites import sites_text

        made = partial(sites_text, session, answer, args)
        return Plain(session, "caches", answer.result, made, blocks_status(session), further=problems)
    return Plain(session, "caches", answer.result, partial(text, found, args), blocks_status(session), further=problems)
