"""Size classes, arenas and thread caches of all allocators, summed and compared with the blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from findleaks.allocators.base import Allocator, Arena, Cache, ThreadCache
from findleaks.engine.terms import State, Totals
from findleaks.formatting import printable
from findleaks.session import Session

COUNTS = {State.IN_USE: "in_use", State.CACHED: "cached", State.FREE: "free"}


class Amount(NamedTuple):
    """Blocks and bytes in each state. `memory`: their bytes with headers and tails."""

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
    """What one allocator reports."""

    allocator: Allocator
    caches: list[Cache]  # one for each size class, or for each class and arena if asked
    arenas: list[Arena]
    threads: list[ThreadCache]
    total: Amount
    mapped: int  # bytes of its arenas, or of its heaps if it has no arenas
    spare: int  # mapped bytes kept, but not divided into blocks
    lent: int  # mapped bytes that contain heaps of other allocators
    counted: Mapping[str, int]
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """ "glibc 2.36" """
        return printable(self.allocator.title)

    @property
    def arena_count(self) -> int:
        """Arenas as `find` counts them: without the entry for blocks mapped one by one."""
        arenas = self.allocator.summary().get("arenas")
        return arenas if isinstance(arenas, int) else len(arenas) if isinstance(arenas, list) else len(self.arenas)

    @property
    def kept(self) -> int:
        """Bytes that are not in use and could be reused."""
        return self.total.cached_bytes + self.total.free_bytes + self.spare


def holdings(session: Session, name: Optional[str] = None, by_arena: bool = False) -> list[AllocatorCaches]:
    """The caches of every allocator, or of those called `name`, in the order they were found."""
    return [_holding_of(session, one, by_arena) for one in session.directory.allocators if name in (None, one.name)]


def _holding_of(session: Session, allocator: Allocator, by_arena: bool) -> AllocatorCaches:
    directory = session.directory
    session.report_progress(f"counting {allocator.name}'s blocks", 0.0)
    caches = allocator.caches(directory.blocks)
    arenas = allocator.arenas(directory.blocks)
    total = amount(caches)
    held = arenas or [Arena("", 0, 0, 0, sum(part.end - part.start for heap in allocator.heaps() for part in heap.parts()))]
    made = AllocatorCaches(
        allocator,
        caches if by_arena else merged(caches),
        arenas,
        allocator.thread_caches(directory.blocks),
        total,
        sum(arena.mapped for arena in held),
        sum(arena.spare for arena in held),
        sum(part.end - part.start for heap in allocator.heaps() for part in heap.inner) if arenas else 0,
        allocator.read_counters(),
    )
    reported = {problem.what for problem in directory.problems}  # asking may have found more
    made.problems.extend(problem.what for problem in allocator.problems if problem.what not in reported)
    made.problems.extend(_differences(session, made))
    return made


def amount(caches: Iterable[Cache]) -> Amount:
    """The sum of these classes."""
    sums = [0] * len(Amount._fields)
    for cache in caches:
        for at, name in enumerate(Amount._fields):
            sums[at] += getattr(cache, name)
    return Amount(*sums)


def merged(caches: Iterable[Cache]) -> list[Cache]:
    """Sums each size class over all arenas, ascending by size. `own` counters stay only for a class
    of one arena: not all can be summed."""
    groups: dict[tuple[int, str], list[Cache]] = {}
    for cache in caches:
        groups.setdefault((cache.size, cache.name), []).append(cache)
    made = []
    for (size, name), group in groups.items():
        sums = amount(group)
        own = group[0].own if len(group) == 1 else {}
        made.append(Cache("", name, size, *sums, _sum_of_known(c.allocs for c in group), _sum_of_known(c.fails for c in group), own))
    return sorted(made, key=by_size)


def _sum_of_known(counts: Iterable[Optional[int]]) -> Optional[int]:
    """The sum of the known counts; None if none is known."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def by_size(cache: Cache) -> int:
    """A class's block size; the mean where it has several, so that large blocks sort last."""
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
"""Sort keys of `--sort`; all but "size" put most bytes first."""

ARENA_KEYS: dict[str, Callable[[Arena], int]] = {
    "size": lambda arena: 0,
    "memory": lambda arena: -arena.mapped,
    "in-use": lambda arena: -arena.in_use,
    "free": lambda arena: -arena.free - arena.spare,
    "cached": lambda arena: -arena.cached,
    "waste": lambda arena: arena.in_use - arena.mapped,
}


def ordered(caches: Sequence[Cache], sort: str) -> list[Cache]:
    """Sorted caches, equal ones ascending by size. By "size", an arena's classes stay together."""
    if sort != "size":
        return sorted(caches, key=lambda cache: (CACHE_KEYS[sort](cache), by_size(cache)))
    arenas = {arena: at for at, arena in enumerate(dict.fromkeys(cache.arena for cache in caches))}
    return sorted(caches, key=lambda cache: (arenas[cache.arena], by_size(cache)))


def ordered_arenas(arenas: Sequence[Arena], sort: str) -> list[Arena]:
    """Arenas that hold most first; by "size", in the allocator's order."""
    return sorted(arenas, key=ARENA_KEYS[sort])


def ordered_threads(kept: Sequence[ThreadCache], sort: str) -> list[ThreadCache]:
    """Thread caches that keep most bytes first; by "size", ascending by thread."""
    if sort != "size":
        return sorted(kept, key=lambda one: (-one.bytes, one.thread))
    return sorted(kept, key=lambda one: one.thread)


def _differences(session: Session, holding: AllocatorCaches) -> Iterator[str]:
    """How an allocator's size classes differ from the blocks in its heaps."""
    directory, name = session.directory, holding.name
    parts = directory.of(holding.allocator)
    for state, count in COUNTS.items():
        words = count.replace("_", " ")
        blocks, size = Totals.sum_of(directory.blocks.totals(state, start, end) for start, end in parts)
        said, said_bytes = getattr(holding.total, count), getattr(holding.total, f"{count}_bytes")
        if (said, said_bytes) != (blocks, size):
            yield (
                f"{name} counts {said:,} blocks {words} ({said_bytes:,} bytes), its heaps hold {blocks:,} ({size:,} bytes): "
                "the size classes are off by as much"
            )
        sums = sum(getattr(arena, count) for arena in holding.arenas)
        if holding.arenas and sums != said_bytes:
            yield f"{name}: {words} are {sums:,} bytes by arena, and {said_bytes:,} by size class"
