"""Allocation stacks of jemalloc's heap profiler (prof:true), with the figures of prof.dump.

Sources: prof_structs.h, prof_data.c and edata.h (5.2: prof.c, extent_structs.h)."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.base import Problem, add_first_problems
from findleaks.allocators.environment import read_variable
from findleaks.allocators.jemalloc.layout import NOT_SAMPLED, UNBIASED_SHIFT, ProfileLayout
from findleaks.allocators.jemalloc.profile import ProfilerBlocks
from findleaks.allocators.jemalloc.view import JemallocView
from findleaks.allocators.sites import Recording, Site, estimate_represented, make_recording, own_library, select_in_use
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import Totals
from findleaks.errors import Interrupted

DEEPEST = 1024  # the largest number of frames; PROF_BT_MAX is 128, a setting of 5.3.1 allows more
USUAL_INTERVAL = 19  # base-2 logarithm: LG_PROF_SAMPLE_DEFAULT
WIDEST_INTERVAL = 50  # base-2 logarithm of the largest interval that is tried
UNKNOWN, DAMAGED = -1, -2  # in place of a site: no record in the profiler; damaged stack
POLL = 1 << 12  # steps between two checks for Ctrl-C
SETTING = re.compile("lg_prof_sample:([0-9]{1,2})")


def make_recordings(allocator: JemallocView, blocks: Blocks) -> list[Recording]:
    """Return a list with the recording of the profiler; [] if the profiler is off."""
    found = allocator.profiler
    if found.row is None:
        return []
    problems: list[Problem] = []
    stacks = _read_stacks(allocator, found, problems)
    interval = _find_interval(allocator)
    numbers = {context: i for i, context in enumerate(stacks)}
    sites = [
        _make_site(frames, counts, found.row, interval) for frames, counts in zip(stacks.values(), _sum_counts(allocator, found, stacks))
    ]
    target = allocator.memory.target
    sampled = list(select_in_use(target, blocks, _find_sampled(allocator, found, numbers, interval)))
    lacking = (address for address, site, _ in sampled if site == UNKNOWN)
    add_first_problems(problems, (_make_record_problem(address) for address in lacking), "blocks like that")
    sampled = [one for one in sampled if one[1] >= 0]
    warnings = [problem.what for problem in problems]
    warnings += _report_missing(sites, Counter(site for _, site, _ in sampled))
    return [
        make_recording(
            target, "jemalloc's heap profiler", sites, sampled, interval, own_library(allocator.parts.image.name, "jemalloc"), warnings
        )
    ]


def _read_stacks(allocator: JemallocView, found: ProfilerBlocks, problems: list[Problem]) -> dict[int, tuple[int, ...]]:
    """Return the stack of each prof_gctx_t, ascending by address. Damaged stacks are left out."""
    memory, stacks, bad = allocator.memory, {}, []
    for count, (context, offset) in enumerate(sorted(found.contexts.items())):
        if count % POLL == 0 and memory.target.is_interrupted():
            raise Interrupted
        # prof_bt_t is {vec, len}; the frames follow it.
        head = memory.words(context + offset, 2)
        length = memory.arch.leading(head[1], 4) if head is not None else 0
        frames: Optional[tuple[int, ...]] = None
        if head is not None and head[0] == context + offset + 16 and length <= DEEPEST:
            frames = memory.words(head[0], length) if length else ()
        if frames is None:
            bad.append(Problem(context, f"the profiler's stack at {context:#x} is damaged: blocks allocated there have none"))
        else:
            stacks[context] = frames
    add_first_problems(problems, bad, "stacks like that")
    return stacks


def _sum_counts(allocator: JemallocView, found: ProfilerBlocks, stacks: dict[int, tuple[int, ...]]) -> Iterator[list[int]]:
    """Sum the counters of all threads for each stack. Counters that prof.reset expired are left
    out."""
    assert found.row is not None
    row, memory, fields = found.row, allocator.memory, 8 if found.row.unbiased else 4
    expired = {thread for thread in found.threads if memory.read(thread + row.expired, 1) == b"\1"}
    sums = {context: [0] * fields for context in stacks}
    for words in found.counts.values():
        sum_ = sums.get(words[row.context // 8])
        counters = words[row.counters // 8 :][:fields]
        if sum_ is not None and words[0] not in expired:
            sum_[:] = [a + b for a, b in zip(sum_, counters)]
    # An unbiased sum may be negative, because prof.reset changes the weight of freed samples.
    return ([value if value < 1 << 63 else 0 for value in sum_] for sum_ in sums.values())


def _make_site(frames: tuple[int, ...], counts: Sequence[int], row: ProfileLayout, interval: int) -> Site:
    """Make a site. `counts` is prof_cnt_t: blocks and bytes that are live, then blocks and bytes
    that were ever allocated."""
    blocks, bytes_, all_blocks, all_bytes = counts[::2] if row.unbiased else counts
    live, allocated = Totals(blocks, bytes_), Totals(all_blocks, all_bytes) if all_blocks else None
    if interval == 1:
        return Site(frames, live, allocated)
    if row.unbiased:
        return Site(frames, live, allocated, Totals(round(counts[1] / UNBIASED_SHIFT), counts[3]))
    scale = estimate_represented(bytes_ / blocks, interval) if blocks else 0.0
    return Site(frames, live, allocated, Totals(round(blocks * scale), round(bytes_ * scale)))


def _find_sampled(
    allocator: JemallocView, found: ProfilerBlocks, numbers: dict[int, int], interval: int
) -> Iterator[tuple[int, int, float]]:
    """Yield address, site (or UNKNOWN or DAMAGED) and weight of the sampled blocks, including those
    in thread caches. Each is alone in its extent, whose descriptor points to the prof_tctx_t."""
    assert found.row is not None
    seen, row = allocator.parts.extents, found.row
    contexts = {at: words[row.context // 8] for at, words in found.counts.items()}
    column = memoryview(seen.raw).cast("Q")[row.tctx // 8 :: seen.length // 8].tolist()
    for count, i in enumerate(seen.blocks):
        if count % POLL == 0 and allocator.memory.target.is_interrupted():
            raise Interrupted
        at = 0 if seen.slab[i] else column[seen.record[i]]
        if at <= NOT_SAMPLED:
            continue
        site = numbers.get(contexts[at], DAMAGED) if at in contexts else UNKNOWN
        yield seen.address[i], site, estimate_represented(seen.classes.sizes[seen.szind[i]], interval)


def _make_record_problem(address: int) -> Problem:
    """Make the problem that a sampled block has no record of the profiler."""
    return Problem(address, f"the block at {address:#x} was sampled by the profiler, but the profiler has no record of it: it has no stack")


def _report_missing(sites: Sequence[Site], found: Counter[int]) -> Iterator[str]:
    """Yield a message if the profiler counts more blocks than were found."""
    missing = sum(max(site.live.blocks - found[i], 0) for i, site in enumerate(sites))
    if missing:
        yield f"jemalloc's profile counts {missing:,} blocks in use more than were found: their descriptors, or its counts, are damaged"


def _find_interval(allocator: JemallocView) -> int:
    """Return the number of bytes between two samples, on average: a power of two."""
    found = _find_by_table(allocator)
    return 1 << (found if found is not None else _find_by_settings(allocator))


def _find_by_table(allocator: JemallocView) -> Optional[int]:
    """Find lg_prof_sample by the table prof_shifted_unbiased_cnt (since 5.3), which has the weight
    of a sampled block by size class. The table for each candidate is computed as in
    prof_unbias_map_init, with bit-identical results."""
    memory, sizes = allocator.memory, allocator.parts.classes.sizes
    tables = []
    for logarithm in range(WIDEST_INTERVAL + 1):
        shares = [1.0 - math.exp(-size / (1 << logarithm)) for size in sizes]
        tables.append(array("Q", [round(UNBIASED_SHIFT / share) for share in shares]).tobytes())
    for piece in allocator.parts.image.pieces(memory.target):
        data = bytes(piece.data)
        for logarithm, table in enumerate(tables):
            if memory.target.is_interrupted():
                raise Interrupted
            if table in data:
                return logarithm
    return None


def _find_by_settings(allocator: JemallocView) -> int:
    """Read lg_prof_sample from MALLOC_CONF in the environment."""
    match = SETTING.search(read_variable(allocator.memory, "MALLOC_CONF") or "")
    return min(int(match[1]), WIDEST_INTERVAL) if match else USUAL_INTERVAL
