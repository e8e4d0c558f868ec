"""Allocation stacks that libumem keeps of each buffer (UMEM_DEBUG=audit): umem_bufctl_audit_t of
umem_impl.h, as ::bufctl -v prints them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from findleaks.allocators.base import Problem, first_problems
from findleaks.allocators.sites import Recording, Site, own_file, recording
from findleaks.allocators.umem import layout as constants
from findleaks.allocators.umem.caches import Slab, tag_of
from findleaks.allocators.umem.view import UmemView
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State, Totals
from findleaks.errors import Interrupted

DEEPEST = 1024  # frames of a stack at most
BATCH = 1 << 13  # buffers read at a time

Stack = tuple[int, ...]


def recordings(umem: UmemView, blocks: Blocks) -> list[Recording]:
    """The stacks of all blocks in use of audited caches; [] if there are none."""
    if not any(cache.audited and not cache.own for cache in umem.kept):
        return []
    bad: list[Problem] = []
    numbers: dict[Stack, int] = {}
    counts, sums = Counter[int](), Counter[int]()
    found: list[tuple[int, int, float]] = []
    for start, size, stack in _stacks(umem, blocks, bad):
        number = numbers.setdefault(stack, len(numbers))
        counts[number] += 1
        sums[number] += size
        found.append((start, number, 1.0))
    problems: list[Problem] = []
    first_problems(problems, bad, "records like that")
    sites = [Site(stack, Totals(counts[number], sums[number])) for stack, number in numbers.items()]
    return [
        recording(
            umem.target, "libumem's audit", sites, found, own=own_file(umem.where, "umem"), warnings=[problem.what for problem in problems]
        )
    ]


def _stacks(umem: UmemView, blocks: Blocks, bad: list[Problem]) -> Iterator[tuple[int, int, Stack]]:
    """Address, usable size and stack of each block."""
    buffers = _buffers(umem)
    while batch := list(islice(buffers, BATCH)):
        if umem.target.interrupted():
            raise Interrupted
        bufctls = _bufctls(umem, batch)
        indices, _ = blocks.find_all([buffer + tag_of(slab.cache, umem.memory.size) for slab, buffer in batch])
        for (slab, buffer), stack, i in zip(batch, _audits(umem, batch, bufctls), indices):
            if i >= len(blocks) or blocks.state(i) != State.IN_USE:
                continue
            if stack is None:
                what = f"libumem: the audit record of buffer {buffer:#x} of {slab.cache.name} is damaged: it has no stack"
                bad.append(Problem(buffer, what))
            else:
                yield blocks.address(i), blocks.size(i), stack


def _buffers(umem: UmemView) -> Iterator[tuple[Slab, int]]:
    """The buffers in use of audited caches, with their slabs."""
    for slab in umem.slabs.users():
        if slab.cache.audited:
            step = slab.cache.chunksize
            yield from ((slab, slab.base + i * step) for i, state in enumerate(slab.states) if state == State.IN_USE)


def _bufctls(umem: UmemView, batch: Sequence[tuple[Slab, int]]) -> list[int]:
    """The bufctl of each buffer: of its tag, or by its cache's hash table; 0 if unreadable."""
    word = umem.memory.size
    tagged = [i for i, (slab, _) in enumerate(batch) if slab.cache.flags & constants.BUFTAG]
    found = [0] * len(batch)
    data, missing = umem.engine.gather(umem.pieces, [batch[i][1] + batch[i][0].cache.buftag + 8 for i in tagged], word)
    absent, values = set(missing), umem.memory.arch.words(data)
    for number, i in enumerate(tagged):
        found[i] = 0 if number in absent else values[number]
    for i, (slab, buffer) in enumerate(batch):
        if not slab.cache.flags & constants.BUFTAG:
            found[i] = umem.bufctl(slab, buffer)
    return found


def _audits(umem: UmemView, batch: Sequence[tuple[Slab, int]], bufctls: Sequence[int]) -> list[Stack | None]:
    """The stacks in these bufctls: {next, addr, slab, cache, timestamp of 8 bytes, thread, lastlog,
    contents, depth (an int), frames}; None where one is damaged."""
    word, size = umem.memory.size, umem.memory.size * (8 + 8 // umem.memory.size)
    data, missing = umem.engine.gather(umem.pieces, bufctls, size)
    heads, absent = umem.memory.arch.words(data), set(missing)
    found: list[Stack | None] = [None] * len(batch)
    by_depth: dict[int, list[int]] = {}
    for i, (slab, buffer) in enumerate(batch):
        head = heads[i * size // word : (i + 1) * size // word]
        depth = head[-1] & 0xFFFFFFFF
        if i not in absent and head[1] == buffer and head[3] == slab.cache.address and depth <= DEEPEST:
            by_depth.setdefault(depth, []).append(i)
    for depth, members in by_depth.items():
        # A record of an empty stack is its head.
        data, missing = umem.engine.gather(umem.pieces, [bufctls[i] + size for i in members], depth * word) if depth else (bytearray(), [])
        frames, absent = umem.memory.arch.words(data), set(missing)
        for number, i in enumerate(members):
            if number not in absent:
                found[i] = tuple(frames[number * depth : (number + 1) * depth])
    return found
