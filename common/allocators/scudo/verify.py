"""Compare scudo's counters with the headers of its blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from findleaks.allocators.base import Problem
from findleaks.allocators.scudo.engine import DAMAGED
from findleaks.allocators.scudo.layout import ALLOCATED, QUARANTINED
from findleaks.allocators.scudo.locate import Found
from findleaks.allocators.scudo.thread_caches import Caches


def check_classes(found: Found, states: Mapping[int, Counter[int]], caches: Caches) -> Iterator[Problem]:
    """Yield a problem for each class whose counters contradict its blocks.

    Blocks that thread caches took and did not return are in use, quarantined, or in a thread
    cache."""
    cached: Counter[int] = Counter()
    for part in caches.blocks:
        cached[part.number] += len(part.chunks)
    for one in found.classes:
        if not one.number:
            continue
        counts = states.get(one.number, Counter())
        present = counts[ALLOCATED] + counts[QUARANTINED] + counts[DAMAGED] + cached[one.number]
        if present != one.popped - one.pushed:
            what = (
                f"scudo counts {one.popped - one.pushed:,} {one.size}-byte blocks as taken from its free lists, "
                f"but {present:,} are in use, in the quarantine or in thread caches: some blocks are counted wrongly"
            )
            yield Problem(one.start, what)
