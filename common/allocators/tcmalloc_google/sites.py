"""Allocation stacks of the blocks that Google's tcmalloc sampled, as in its heap profile.

Sources: internal/logging.h (StackTrace), internal/sampled_allocation.h, allocation_sampling.h."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.base import Problem, add_first_problems
from findleaks.allocators.bulk import read_records
from findleaks.allocators.sites import Recording, Site, make_recording, own_library, select_in_use
from findleaks.allocators.tcmalloc_google.heap import GoogleHeap
from findleaks.allocators.tcmalloc_google.layout import (
    ALLOCATED_SIZE,
    DEEPEST,
    DEPTH,
    REQUESTED_SIZE,
    SAMPLE,
    SPAN_START,
    SPAN_WORDS,
    STACK,
    STACK_TRACE,
    WEIGHT,
)
from findleaks.allocators.tcmallocs.page_map import WORD
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import Totals

MOST = 1 << 47  # bytes that a sample may represent

_Sample = tuple[int, int, float, int]  # block, its bytes, number of blocks represented, weight


def recordings(heap: GoogleHeap, blocks: Blocks) -> list[Recording]:
    """Return a list with the recording of the sampled blocks; [] if there are none.

    The interval is the mean of the samples' weights. A weight is the number of bytes that were
    allocated since the previous sample."""
    bad: list[Problem] = []
    stacks: dict[tuple[int, ...], list[_Sample]] = {}
    for stack, sample in _samples(heap, bad):
        stacks.setdefault(stack, []).append(sample)
    if not stacks and not bad:
        return []
    problems: list[Problem] = []
    add_first_problems(problems, bad, "records like that")
    found = [(start, number, share) for number, samples in enumerate(stacks.values()) for start, _, share, _ in samples]
    weights = [weight for samples in stacks.values() for _, _, _, weight in samples]
    interval = max(sum(weights) // max(len(weights), 1), 2)
    sites = [_site(stack, samples) for stack, samples in stacks.items()]
    warnings = [problem.what for problem in problems]
    return [
        make_recording(
            heap.target,
            "tcmalloc's sampling",
            sites,
            select_in_use(heap.target, blocks, found),
            interval,
            own_library(heap.where, "tcmalloc"),
            warnings,
        )
    ]


def _samples(heap: GoogleHeap, bad: list[Problem]) -> list[tuple[tuple[int, ...], _Sample]]:
    """Return the stack and sample of each sampled block. Damaged records are added to `bad`."""
    words = memoryview(heap.records.data).cast("Q")
    chosen = sorted((words[span.record * SPAN_WORDS + SAMPLE], span.start, span.end) for span in heap.spans if span.sampled)
    data, missing = read_records(heap.target, heap.engine, [address for address, _, _ in chosen], STACK_TRACE)
    fields, found = memoryview(data).cast("Q"), []
    for i, (address, start, end) in enumerate(chosen):
        record = fields[i * STACK_TRACE // WORD : (i + 1) * STACK_TRACE // WORD]
        stack = None if i in missing else _stack(record, start)
        size, asked, weight = (record[offset // WORD] for offset in (ALLOCATED_SIZE, REQUESTED_SIZE, WEIGHT))
        if stack is None or not 0 < size <= end - start or asked > size or weight >= MOST:
            bad.append(Problem(address, f"the record at {address:#x} of the sampled block at {start:#x} is damaged: it has no stack"))
        else:
            found.append((stack, (start, size, weight / (asked + 1), weight)))
    return found


def _stack(record: Sequence[int], start: int) -> tuple[int, ...] | None:
    """Return the frames in the record of a sampled span that begins at `start`; None if the record
    belongs to another span."""
    depth = record[DEPTH // WORD]
    if record[SPAN_START // WORD] != start or not 0 < depth <= DEEPEST:
        return None
    return tuple(record[STACK // WORD : STACK // WORD + depth])


def _site(stack: tuple[int, ...], samples: Sequence[_Sample]) -> Site:
    """Make the site of these samples."""
    live = Totals(len(samples), sum(size for _, size, _, _ in samples))
    estimated = Totals(round(sum(share for _, _, share, _ in samples)), round(sum(share * size for _, size, share, _ in samples)))
    return Site(stack, live, None, estimated)
