"""musl's mallocs: mallocng (1.2.1 and newer), and oldmalloc (before 1.2.1, and as an option since).

mallocng can be detected quickly: its first meta_area is right above a guard page and has the number
of its metas. The first word of a meta_area, a secret, is also in mallocng's context, which is in
the data of a loaded file. oldmalloc is searched for only if the main thread's control block is not
glibc's."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from findleaks.allocators.base import Allocator
from findleaks.allocators.memory import Memory
from findleaks.allocators.musl.layout import AREA, Meta, number64
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target

_MOST_PROBES = 4096
# in a core with at most this number of regions, all are examined, because it may lack guard pages
_FEW_REGIONS = 256


def find(target: Target, engine: Engine, taken: Sequence[Range]) -> Sequence[Allocator]:
    """Find the mallocs of musl in a process (see base.Finder)."""
    found: list[Allocator] = []
    secrets = _secrets(target)
    if secrets:
        from findleaks.allocators.musl import ng

        found += ng.find(target, engine, secrets)
    if not found and not _glibc_threads(target):
        from findleaks.allocators.musl import old

        found += old.find(target, engine, taken)
    return found


def _secrets(target: Target) -> list[int]:
    """Return the first words of possible meta_areas, without duplicates."""
    memory = Memory(target)
    meta = Meta(target.arch.word)
    found: dict[int, None] = {}
    for address in _probes(target):
        secret = number64(memory, address)
        after, count = memory.word(address + 8) or 0, memory.int32(address + 8 + memory.size)
        if secret and count == meta.count and after % AREA == 0:
            found.setdefault(secret)
    return list(found)[:16]


def _probes(target: Target) -> Iterator[int]:
    """Yield the starts of anonymous writable memory right above a guard page, except stacks of
    threads."""
    regions = target.regions()
    stacks = sorted(thread.sp for thread in target.threads())
    left = _MOST_PROBES
    for before, region in zip([None, *regions], regions):
        if not (region.writable and region.readable and region.private) or region.name.startswith("/"):
            continue
        at = bisect_left(stacks, region.start)
        if at < len(stacks) and stacks[at] < region.end:
            continue
        guarded = before is not None and before.end == region.start and not (before.readable or before.writable)
        if (guarded or (not target.live and len(regions) <= _FEW_REGIONS)) and left:
            left -= 1
            yield region.start


def _glibc_threads(target: Target) -> bool:
    """Return whether the first thread's control block is glibc's: word 2 is its own address, and
    word 3 differs.

    In musl's struct pthread (src/internal/pthread_impl.h), these words are the thread's neighbours
    in the ring of threads, or before 1.1.22, unused."""
    memory = Memory(target)
    for thread in target.threads():
        words = memory.words(thread.thread_pointer, 4)
        if words is not None and words[0] == thread.thread_pointer:
            return words[2] == words[0] != words[3]
    return False
