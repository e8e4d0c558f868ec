"""Check the integrity of oldmalloc's bins, their bitmap and chunks. The sizes of chunks are
compared by the walk.

Sources: src/malloc/oldmalloc/malloc.c (bin_chunk, unbin, lock_bin), musl 1.2.1 to 1.2.6;
src/malloc/malloc.c before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional, Protocol

from findleaks.allocators.base import Problem
from findleaks.allocators.mappings import MappedChunk
from findleaks.allocators.memory import Memory
from findleaks.allocators.musl.layout import Mal, bin_of, number64
from findleaks.allocators.musl.old_heaps import Segment
from findleaks.engine.terms import State


class OldMallocView(Protocol):
    """The part of old.OldMalloc that the checks need. The checks set `checked`, and change nothing
    else."""

    memory: Memory
    mal: Mal
    segments: list[Segment]
    mapped: list[MappedChunk]
    checked: dict[str, int]


def _behind(memory: Memory, chunk: int, free: dict[int, int], binned: set[int]) -> set[int]:
    """Return the chunks of a bin from its tail backward. This is for a bin that cannot be followed
    from its head to the end."""
    found: set[int] = set()
    while chunk in free and chunk not in binned and chunk not in found:
        found.add(chunk)
        links = memory.words(chunk, 4)
        chunk = links[3] if links is not None else 0
    return found


def verify(allocator: OldMallocView) -> Iterator[Optional[Problem]]:
    """Check the ring of each bin in both directions, the sizes of chunks, and the bitmap. Then
    report free chunks that are in no bin."""
    memory, mal, layout = allocator.memory, allocator.mal, allocator.mal.layout
    header, checked = layout.overhead, allocator.checked
    checked["chunk headers"] = sum(segment.count + 1 for segment in allocator.segments) + len(allocator.mapped)
    free = {}
    for segment in allocator.segments:
        for start, size, state in segment.blocks():
            if state == State.FREE:
                free[start - header] = size + header
        yield None
    bits = number64(memory, mal.address)
    binned: set[int] = set()
    used = 0
    for number in range(layout.bins):
        end = mal.bin(number)
        ends = memory.words(end + header, 2)
        if ends is None or ends[0] == 0:
            if bits >> number & 1:
                yield Problem(mal.address, f"binmap has a bit for bin {number}, but this bin was never used")
            continue
        if (ends[0] != end) != bool(bits >> number & 1):
            what = "has chunks, but no bit in binmap: malloc never uses them" if ends[0] != end else "is empty, but has a bit in binmap"
            yield Problem(mal.address, f"bin {number} {what}")
        before, chunk = end, ends[0]
        while chunk != end:
            links = memory.words(chunk, 4)
            if chunk not in free or links is None:
                yield Problem(before + header, f"bin {number} continues from {before:#x} to {chunk:#x}, which is not a free chunk")
                binned.update(_behind(memory, ends[1], free, binned))
                break
            if chunk in binned:
                yield Problem(chunk, f"the free chunk {chunk:#x} is twice in the bins (bin {number})")
                break
            binned.add(chunk)
            if links[3] != before:
                what = f"the free chunk {chunk:#x} in bin {number} has {links[3]:#x} before it, not {before:#x}: written after it was freed"
                yield Problem(chunk + header + memory.size, what, expected=before)
            if bin_of(free[chunk], layout.align) != number:
                yield Problem(chunk, f"the free chunk {chunk:#x} of {free[chunk]:,} bytes is in bin {number}, which is not for its size")
            before, chunk = chunk, links[2]
        else:
            if ends[1] != before:
                yield Problem(end + header, f"the tail of bin {number} is {ends[1]:#x}, but its last chunk is {before:#x}")
        used += 1
    checked["bin links"] = used + len(binned)
    lost = sorted(set(free) - binned)
    for chunk in lost[:100]:
        yield Problem(chunk, f"the free chunk {chunk:#x} of {free[chunk]:,} bytes is in no bin: it is never used again")
    if len(lost) > 100:
        yield Problem(lost[100], f"and {len(lost) - 100:,} more free chunks are in no bin")
