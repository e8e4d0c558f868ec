"""Allocation stacks that gperftools recorded: those of its heap profiler (HEAPPROFILE=…), and those
of sampled blocks (TCMALLOC_SAMPLE_PARAMETER=…)."""

from __future__ import annotations

from collections.abc import Iterable

from findleaks.allocators.base import Problem, add_first_problems
from findleaks.allocators.bulk import read_records
from findleaks.allocators.environment import read_variable
from findleaks.allocators.memory import Memory
from findleaks.allocators.sites import Recording, Site, estimate_represented, make_recording, select_in_use
from findleaks.allocators.tcmalloc.heap_profile import HeapProfile, read
from findleaks.allocators.tcmalloc.layout import IN_USE, STACK
from findleaks.allocators.tcmalloc.spans import Span
from findleaks.allocators.tcmallocs.page_map import WORD
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import Totals

DEEPEST = STACK // WORD - 2  # frames of a sampled block's stack
PERIOD = "_ZN61FLAG__namespace_do_not_use_directly_use_DECLARE_int64_instead31FLAGS_tcmalloc_sample_parameterE"
# bytes, recommended by the manual; without the setting there is no sampling
USUAL_PERIOD = 512 << 10


def of_profile(memory: Memory, engine: Engine, profile: HeapProfile, blocks: Blocks, own: str) -> Recording:
    """Return the recording of the heap profiler, which has every allocation since it was
    started."""
    found, target = read(memory, engine, profile), memory.target
    numbers = {address: number for number, address in enumerate(found.buckets)}
    sites = [
        Site(one.frames, Totals(one.allocs - one.frees, one.alloc_size - one.free_size), Totals(one.allocs, one.alloc_size))
        for one in found.buckets.values()
    ]
    known = [(entry.block, numbers[entry.bucket], 1.0) for entry in found.entries]
    used = list(select_in_use(target, blocks, known))
    left = {entry.block for entry in found.entries}.difference(block for block, _, _ in used)
    bad = (
        Problem(
            entry.address,
            f"an entry of the heap profiler's map at {entry.address:#x} is about {entry.block:#x}, where no block in use begins",
        )
        for entry in found.entries
        if entry.block in left
    )
    add_first_problems(found.problems, bad, "entries like that")
    warnings = [one.what for one in found.problems]
    return make_recording(target, "gperftools' heap profiler", sites, used, own=own, warnings=warnings)


def of_samples(memory: Memory, engine: Engine, spans: Iterable[Span], blocks: Blocks, own: str) -> list[Recording]:
    """Return a list with the recording of the sampled blocks; [] if there are none. A sampled block
    is alone in its span, which points to {size, depth, frames}."""
    sampled = sorted((span for span in spans if span.sampled and span.location == IN_USE), key=lambda span: span.objects)
    if not sampled:
        return []
    period = _period(memory)
    data, missing = read_records(memory.target, engine, [span.objects for span in sampled], STACK)
    words = memoryview(data).cast("Q")
    stacks: dict[tuple[int, ...], list[int]] = {}
    found, problems, bad = [], list[Problem](), []
    numbers: dict[tuple[int, ...], int] = {}
    for i, span in enumerate(sampled):
        size, depth, *frames = words[i * (DEEPEST + 2) : (i + 1) * (DEEPEST + 2)]
        if i in missing or not 0 < depth <= DEEPEST or size > span.end - span.start:
            bad.append(Problem(span.objects, f"the stack of the sampled block at {span.start:#x} is damaged, at {span.objects:#x}"))
            continue
        stack = tuple(frames[:depth])
        number = numbers.setdefault(stack, len(numbers))
        stacks.setdefault(stack, []).append(size)
        found.append((span.start, number, estimate_represented(size, period)))
    add_first_problems(problems, bad, "stacks like that")
    sites = [_site(stack, sizes, period) for stack, sizes in stacks.items()]
    warnings = [problem.what for problem in problems]
    used = select_in_use(memory.target, blocks, found)
    return [make_recording(memory.target, "gperftools' sampling", sites, used, max(period, 2), own, warnings)]


def _site(stack: tuple[int, ...], sizes: list[int], period: int) -> Site:
    """Make the site of sampled blocks with these sizes."""
    weights = [estimate_represented(size, period) for size in sizes]
    estimated = Totals(round(sum(weights)), round(sum(weight * size for weight, size in zip(weights, sizes))))
    return Site(stack, Totals(len(sizes), sum(sizes)), None, estimated)


def _period(memory: Memory) -> int:
    """Return the number of bytes between two samples: the value of the flag if the library exports
    it, otherwise that of the setting."""
    symbol = memory.target.symbol(PERIOD)
    value = memory.word(symbol.address) if symbol is not None else None
    if not value or value >> 58:
        text = read_variable(memory, "TCMALLOC_SAMPLE_PARAMETER") or ""
        value = int(text) if text.isdecimal() else 0
    return value or USUAL_PERIOD
