"""Answer the question "how do allocators use their memory?": size classes, arenas and thread
caches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, Optional

from findleaks.allocators.base import Arena, Cache, ThreadCache
from findleaks.answers.sites import allocation_site, recorders, recording_hints
from findleaks.arg_types import SizeRange
from findleaks.audit.cache_sites import ClassSite, count_class_sites
from findleaks.audit.caches import AllocatorCaches, list_allocator_caches, sort_arenas, sort_caches, sort_thread_caches
from findleaks.audit.site_stacks import SiteNames
from findleaks.results import caches
from findleaks.results.amounts import Amount
from findleaks.results.caches import AllocatorTotals, ArenaTotals, BlockCounts, Caches, SizeClass, SizeClassSite
from findleaks.session import Session


class FoundCaches(NamedTuple):
    """The result, and the analysis that it was computed from."""

    result: Caches
    holdings: Sequence[AllocatorCaches]
    sites: Sequence[ClassSite]


def describe_caches(
    session: Session,
    allocator: Optional[str] = None,
    by_arena: bool = False,
    sort: str = "size",
    limit: Optional[int] = None,
    sites: bool = False,
    sizes: Optional[SizeRange] = None,
) -> FoundCaches:
    """Return the memory of every allocator, or of the allocator with this name.

    `by_arena`: whether there is a row for each size class of each arena. `sort`: a key of
    CACHE_KEYS. `limit`: number of rows of each allocator (0, None: all). `sites`: whether to add
    the call stacks that allocated the blocks in use of each size class. `sizes`: only the size
    classes that contain these sizes get call stacks."""
    found, most = list_allocator_caches(session, allocator, by_arena), limit or None
    each = list(enumerate(found))
    of_classes = count_class_sites(session, found, sizes) if sites else []
    result = Caches(
        totals=[_total(holding, instance) for instance, holding in each],
        caches=[_cache(one, *_who(holding, at)) for at, holding in each for one in sort_caches(holding.caches, sort)[:most]],
        arenas=[_arena(one, *_who(holding, at)) for at, holding in each for one in sort_arenas(holding.arenas, sort)[:most]],
        threads=[_thread(one, *_who(holding, at)) for at, holding in each for one in sort_thread_caches(holding.threads, sort)[:most]],
        recorders=recorders(session) if sites else None,
        sites=list(_sites(session, found, of_classes, most)) if sites else None,
        recording_hints=recording_hints(session) if sites else (),
    )
    return FoundCaches(result, found, of_classes)


def _who(holding: AllocatorCaches, instance: int) -> tuple[str, int]:
    return holding.allocator.name, instance


def _total(holding: AllocatorCaches, instance: int) -> AllocatorTotals:
    total = holding.total
    return AllocatorTotals(
        *_who(holding, instance),
        version=holding.allocator.version,
        where=holding.allocator.where,
        in_use=total.in_use_bytes,
        cached=total.cached_bytes,
        free=total.free_bytes,
        spare=holding.spare,
        lent=holding.lent,
        memory=total.memory,
        mapped=holding.mapped,
        blocks=BlockCounts(total.in_use, total.cached, total.free, total.total),
        counted=holding.counted,
    )


def _cache(one: Cache, allocator: str, instance: int) -> SizeClass:
    return SizeClass(
        allocator,
        instance,
        arena=one.arena or None,
        name=one.name,
        size=one.size,
        in_use=one.in_use,
        cached=one.cached,
        free=one.free,
        total=one.total,
        in_use_bytes=one.in_use_bytes,
        cached_bytes=one.cached_bytes,
        free_bytes=one.free_bytes,
        memory=one.memory,
        allocs=one.allocs,
        fails=one.fails,
        own=one.own,
    )


def _arena(one: Arena, allocator: str, instance: int) -> ArenaTotals:
    return ArenaTotals(allocator, instance, one.name, one.in_use, one.cached, one.free, one.spare, one.mapped, one.own)


def _thread(one: ThreadCache, allocator: str, instance: int) -> caches.ThreadCache:
    return caches.ThreadCache(allocator, instance, one.thread or None, one.address, one.name, one.size, one.blocks, one.bytes)


def _sites(session: Session, found: Sequence[AllocatorCaches], sites: Sequence[ClassSite], most: Optional[int]) -> Iterator[SizeClassSite]:
    """Yield the first `most` sites of each size class."""
    names = SiteNames(session)
    for _, group in groupby(sites, key=size_class):
        for one in list(group)[:most]:
            yield SizeClassSite(
                *_who(found[one.instance], one.instance),
                name=one.name,
                size=one.size,
                blocks=one.live.blocks,
                bytes=one.live.bytes,
                estimated=Amount.of_known(one.estimated),
                site=allocation_site(session, names, one.site),
            )


def size_class(one: ClassSite) -> tuple[int, int, str]:
    """Return a value that is the same for all sites of one size class: allocator, size and name."""
    return one.instance, one.size, one.name
