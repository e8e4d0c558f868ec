"""Read the size classes, arenas and thread caches of all allocators, and compare them with the
blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from findleaks.allocators.base import Allocator, Arena, Cache, ThreadCache
from findleaks.engine.terms import State
from findleaks.session import Session

COUNTS = {State.IN_USE: "in_use", State.CACHED: "cached", State.FREE: "free"}


class Amount(NamedTuple):
    """Number of blocks and bytes by state. `memory`: bytes of all these blocks, including headers
    and padding."""

    in_use: int = 0
    cached: int = 0
    free: int = 0
    in_use_bytes: int = 0
    cached_bytes: int = 0
    free_bytes: int = 0
    memory: int = 0

    @property
    def total(self) -> int:
        return self.in_use + self.cached + self.free

    @property
    def bytes(self) -> int:
        return self.in_use_bytes + self.cached_bytes + self.free_bytes


@dataclass(frozen=True)
class AllocatorCaches:
    """The caches that one allocator reports."""

    allocator: Allocator
    caches: list[Cache]  # one for each size class; if split by arena, one for each class and arena
    arenas: list[Arena]
    threads: list[ThreadCache]
    total: Amount
    mapped: int  # bytes of the arenas; bytes of the heaps if the allocator has no arenas
    spare: int  # mapped bytes that are free, but not divided into blocks
    lent: int  # mapped bytes that contain heaps of other allocators
    counted: Mapping[str, int]
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """ "glibc 2.36" """
        return self.allocator.title

    @property
    def arena_count(self) -> int:
        """Number of arenas as `find` counts them. The entry for separately mapped blocks does not
        count."""
        arenas = self.allocator.summary().get("arenas")
        return arenas if isinstance(arenas, int) else len(arenas) if isinstance(arenas, list) else len(self.arenas)

    @property
    def kept(self) -> int:
        """Bytes that are not in use and can be reused."""
        return self.total.cached_bytes + self.total.free_bytes + self.spare


def list_allocator_caches(session: Session, name: Optional[str] = None, by_arena: bool = False) -> list[AllocatorCaches]:
    """Return the caches of every allocator, or of those with this name, in the order of
    discovery."""
    return [_read_allocator_caches(session, one, by_arena) for one in session.directory.allocators if name in (None, one.name)]


def _read_allocator_caches(session: Session, allocator: Allocator, by_arena: bool) -> AllocatorCaches:
    directory = session.directory
    session.report_progress(f"counting {allocator.name}'s blocks", 0.0)
    caches = allocator.caches(directory.blocks)
    arenas = allocator.arenas(directory.blocks)
    total = sum_caches(caches)
    held = arenas or [Arena("", 0, 0, 0, sum(part.end - part.start for heap in allocator.heaps() for part in heap.parts()))]
    made = AllocatorCaches(
        allocator,
        caches if by_arena else merge_over_arenas(caches),
        arenas,
        allocator.thread_caches(directory.blocks),
        total,
        sum(arena.mapped for arena in held),
        sum(arena.spare for arena in held),
        sum(part.end - part.start for heap in allocator.heaps() for part in heap.inner_ranges()) if arenas else 0,
        allocator.read_counters(),
    )
    # Reading the caches above may have found further problems.
    reported = {problem.what for problem in directory.problems}
    made.problems.extend(problem.what for problem in allocator.problems if problem.what not in reported)
    made.problems.extend(_find_differences(session, made))
    return made


def sum_caches(caches: Iterable[Cache]) -> Amount:
    """Return the sum over these size classes."""
    sums = [0] * len(Amount._fields)
    for cache in caches:
        for at, name in enumerate(Amount._fields):
            sums[at] += getattr(cache, name)
    return Amount(*sums)


def merge_over_arenas(caches: Iterable[Cache]) -> list[Cache]:
    """Add up the counts of each size class over all arenas, ascending by size.

    Allocator-specific counters (`own`) are kept only if one arena has the class, because some of
    these counters cannot be added."""
    groups: dict[tuple[int, str], list[Cache]] = {}
    for cache in caches:
        groups.setdefault((cache.size, cache.name), []).append(cache)
    made = []
    for (size, name), group in groups.items():
        sums = sum_caches(group)
        own = group[0].own if len(group) == 1 else {}
        made.append(Cache("", name, size, *sums, _sum_of_known(c.allocs for c in group), _sum_of_known(c.fails for c in group), own))
    return sorted(made, key=by_size)


def _sum_of_known(counts: Iterable[Optional[int]]) -> Optional[int]:
    """Return the sum of the known counts; None if none is known."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def by_size(cache: Cache) -> int:
    """Return the block size of a class. For a class of several sizes, this is the mean, so that
    large blocks come last."""
    bytes_ = cache.in_use_bytes + cache.cached_bytes + cache.free_bytes
    return cache.size or (bytes_ // cache.total if cache.total else 0)


CACHE_KEYS: dict[str, Callable[[Cache], int]] = {
    "size": by_size,
    "memory": lambda cache: -cache.memory,
    "in-use": lambda cache: -cache.in_use_bytes,
    "free": lambda cache: -cache.free_bytes,
    "cached": lambda cache: -cache.cached_bytes,
    "waste": lambda cache: cache.in_use_bytes - cache.memory,
}
"""Sort keys of `--sort`. All but "size" put the most bytes first."""

ARENA_KEYS: dict[str, Callable[[Arena], int]] = {
    "size": lambda arena: 0,
    "memory": lambda arena: -arena.mapped,
    "in-use": lambda arena: -arena.in_use,
    "free": lambda arena: -arena.free - arena.spare,
    "cached": lambda arena: -arena.cached,
    "waste": lambda arena: arena.in_use - arena.mapped,
}


def sort_caches(caches: Sequence[Cache], sort: str) -> list[Cache]:
    """Sort size classes; equal ones ascend by size. If `sort` is "size", the classes of an arena
    stay together."""
    if sort != "size":
        return sorted(caches, key=lambda cache: (CACHE_KEYS[sort](cache), by_size(cache)))
    arenas = {arena: at for at, arena in enumerate(dict.fromkeys(cache.arena for cache in caches))}
    return sorted(caches, key=lambda cache: (arenas[cache.arena], by_size(cache)))


def sort_arenas(arenas: Sequence[Arena], sort: str) -> list[Arena]:
    """Sort arenas, the most bytes first. If `sort` is "size", keep the allocator's order."""
    return sorted(arenas, key=ARENA_KEYS[sort])


def sort_thread_caches(kept: Sequence[ThreadCache], sort: str) -> list[ThreadCache]:
    """Sort thread caches, the most bytes first. If `sort` is "size", sort by thread."""
    if sort != "size":
        return sorted(kept, key=lambda one: (-one.bytes, one.thread))
    return sorted(kept, key=lambda one: one.thread)


def _find_differences(session: Session, holding: AllocatorCaches) -> Iterator[str]:
    """Yield differences between the counts of an allocator's size classes and the blocks in its
    heaps."""
    directory, name = session.directory, holding.name
    totals = directory.totals(holding.allocator)
    for state, count in COUNTS.items():
        words = count.replace("_", " ")
        blocks, size = totals[state]
        said, said_bytes = getattr(holding.total, count), getattr(holding.total, f"{count}_bytes")
        if (said, said_bytes) != (blocks, size):
            yield (
                f"{name}: the size classes have {said:,} blocks {words} ({said_bytes:,} bytes), the heaps {blocks:,} ({size:,} bytes): "
                "one of the two is wrong"
            )
        sums = sum(getattr(arena, count) for arena in holding.arenas)
        if holding.arenas and sums != said_bytes:
            yield f"{name}: the arenas have {sums:,} bytes {words}, the size classes {said_bytes:,}"
