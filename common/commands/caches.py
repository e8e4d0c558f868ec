"""`caches`: size classes of each allocator: in use, in thread caches, free; as mdb's ::umastat."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from findleaks.allocators.base import Arena, Cache, ThreadCache
from findleaks.audit.caches import CACHE_KEYS, AllocatorCaches, holdings, ordered, ordered_arenas, ordered_threads
from findleaks.commands import command
from findleaks.commands.blocks import allocator_named
from findleaks.commands.caches_text import MANY, text
from findleaks.commands.limits import Row, add_limit, first
from findleaks.commands.result import Plain, blocks_status, fields
from findleaks.session import Session


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--by-arena", action="store_true", help="what each arena holds, and every size class of each arena")
    parser.add_argument("--by-thread", action="store_true", help="what each thread keeps in its cache, in all and of every size class")
    parser.add_argument("--sort", choices=tuple(CACHE_KEYS), default="size", help="rows by size (default), or those first that hold most")
    parser.add_argument("--allocator", metavar="NAME", help="only this allocator: glibc, jemalloc, …")
    parser.add_argument("--sites", action="store_true", help="the stacks that allocated the blocks of each size class, where recorded")
    parser.add_argument("--size", metavar="A-B", help="with --sites: only of classes with blocks of these sizes, e.g. 48, 1k-4k")
    add_limit(parser, "rows of a table", f"all, {MANY} by arena or thread")


@command(arguments=_arguments)
def caches(session: Session, args: argparse.Namespace) -> Plain:
    """Show what every size class of every allocator holds: blocks in use, in thread caches (freed,
    kept by a thread for itself) and free; the memory they take, headers included; and which part of
    it is in use. USED is by bytes. Allocations and failures are shown where the allocator counts
    them.

    Memory that is free but kept is not leaked: the allocator hands it out again when it is asked
    for, and until then it mostly stays with the process (which of its pages are resident is not
    looked at). Sizes are usable bytes; glibc's from 1 KiB up are grouped in bands. Spare is
    memory that is not cut up into blocks, such as glibc's top.

    With --sites the blocks in use of each size class are listed by the stacks that allocated them,
    as a heap profiler or the like recorded them in the process."""
    allocator = allocator_named(session, args.allocator)
    found = holdings(session, allocator, args.by_arena)

    def rows(listed: Callable[[AllocatorCaches], Sequence[Row]], row: Callable[[Row], Mapping[str, object]]) -> list[Mapping[str, object]]:
        return [
            {**_who(holding, instance), **row(one)} for instance, holding in enumerate(found) for one in first(listed(holding), args.limit)
        ]

    body: dict[str, object] = {
        "totals": [_total(holding, instance) for instance, holding in enumerate(found)],
        "caches": rows(lambda holding: ordered(holding.caches, args.sort), _cache),
        "arenas": rows(lambda holding: ordered_arenas(holding.arenas, args.sort), _arena),
        "threads": rows(lambda holding: ordered_threads(holding.threads, args.sort), _thread),
    }
    problems = [problem for holding in found for problem in holding.problems]
    if args.sites:
        # few processes have recorded stacks
        from findleaks.commands.caches_sites import sites_body, sites_of_classes, sites_text

        sites = sites_of_classes(session, found, args)
        made = partial(sites_text, session, found, sites, args)
        body = {**body, **sites_body(session, found, sites, args.limit)}
        return Plain(session, "caches", body, made, blocks_status(session), further=problems)
    return Plain(session, "caches", body, partial(text, found, args), blocks_status(session), further=problems)


def _who(holding: AllocatorCaches, instance: int) -> Mapping[str, object]:
    """Allocator and instance: its index in the totals, as two allocators may share a name."""
    return {"allocator": holding.allocator.name, "instance": instance}


def _total(holding: AllocatorCaches, instance: int) -> Mapping[str, object]:
    """Totals of one allocator, in bytes except for `blocks`."""
    total = holding.total
    return {
        **_who(holding, instance),
        **fields(holding.allocator, "version", "where"),
        "in_use": total.in_use_bytes,
        "cached": total.cached_bytes,
        "free": total.free_bytes,
        **fields(holding, "spare", "lent"),
        "memory": total.memory,
        "mapped": holding.mapped,
        "blocks": fields(total, "in_use", "cached", "free", "total"),
        "counted": holding.counted,
    }


def _cache(cache: Cache) -> Mapping[str, object]:
    names = ("name", "size", "in_use", "cached", "free", "total", "in_use_bytes", "cached_bytes", "free_bytes", "memory", "allocs", "fails")
    return {"arena": cache.arena or None, **fields(cache, *names), "own": cache.own}


def _arena(arena: Arena) -> Mapping[str, object]:
    return fields(arena, "name", "in_use", "cached", "free", "spare", "mapped", "own")


def _thread(kept: ThreadCache) -> Mapping[str, object]:
    return {"thread": kept.thread or None, "address": hex(kept.address), **fields(kept, "name", "size", "blocks", "bytes")}
