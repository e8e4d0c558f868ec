"""glibc's malloc (ptmalloc2), read without symbols and without the host's libc.

Sources: malloc/malloc.c and arena.c of glibc 2.11 to 2.43. layout.py names the releases that were
checked."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from findleaks.allocators.glibc import locate, mmapped
from findleaks.allocators.glibc.instance import Glibc
from findleaks.allocators.mappings import MappedChunk, find_unclaimed
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.libc.stacks import is_musl
from findleaks.target.base import Range, Target


def find(target: Target, engine: Engine, taken: Sequence[Range] = ()) -> Sequence[Glibc]:
    """Find the glibc mallocs of a process (see base.Finder). There are two if a static program
    loads a libc, or after dlmopen."""
    if any(is_musl(target, thread.thread_pointer) for thread in target.threads()[:1]):
        # A musl process has no main_arena, and searching all its memory for one takes long.
        return []
    memory = Memory(target)
    found = []
    for instance in locate.find_instances(target, engine, taken):
        locate.find_par(memory, instance)
        found.append(Glibc(target, engine, instance))
    if not found and target.truncated:
        from findleaks.allocators.glibc.remains import find_remains  # seldom needed

        remains = find_remains(target, engine, _find_unclaimed(target, (), taken))
        found += [Glibc(target, engine, remains)] if remains is not None else []
    if not found:
        return found
    for allocator in sorted(found, key=lambda a: not a.instance.main.is_contiguous):
        allocator.claim_main(_find_unclaimed(target, found, taken))
    free = _find_unclaimed(target, found, taken)
    _distribute_mapped(memory, found, free)
    for allocator in found:
        allocator.unclaimed = free
        allocator.find_caches()
    return found


def _find_unclaimed(target: Target, allocators: Sequence[Glibc], others: Sequence[Range]) -> list[Range]:
    """Return memory that belongs neither to the heaps found so far nor to other allocators."""
    return find_unclaimed(target, [*(Range(span.start, span.end) for allocator in allocators for span in allocator.spans), *others])


def _distribute_mapped(memory: Memory, allocators: Sequence[Glibc], free: Sequence[Range]) -> None:
    """Find the mmapped chunks, and distribute them over the instances by the counts in each mp_,
    because a chunk does not show which instance it belongs to."""
    counts = [allocator.par("n_mmaps") for allocator in allocators]
    sizes = [allocator.par("mmapped_mem") for allocator in allocators]
    known = None not in counts and None not in sizes
    count, size = (sum(c or 0 for c in counts), sum(s or 0 for s in sizes)) if known else (None, None)
    chunks = mmapped.find_mmapped(memory, allocators[0].granule, free, count, size)
    for allocator in allocators[:-1]:
        mine, chunks = _take_portion(chunks, allocator.par("n_mmaps") or 0, allocator.par("mmapped_mem") or 0)
        allocator.claim_mapped(mine)
    allocators[-1].claim_mapped(chunks)


def _take_portion(chunks: list[MappedChunk], count: int, size: int) -> tuple[list[MappedChunk], list[MappedChunk]]:
    """Divide `chunks` into two lists: `count` adjacent chunks of `size` bytes in total, and the
    others. If no such chunks exist, the first list has the first `count` chunks."""
    ends = [0, *accumulate(chunk.end - chunk.start for chunk in chunks)]
    first = next((i for i, end in enumerate(ends[count:]) if end - ends[i] == size), 0)
    return chunks[first : first + count], [*chunks[:first], *chunks[first + count :]]
