"""Blocks that are there at every later moment of one process, by size: what stays, and what goes.

A leak's new blocks stay; those of a cache or of churn go. The same address and the same usable size
count as the same block: one that was freed, and allocated again at its place with its size before
the next snapshot, counts as one that stayed. A block that is missing at a moment and there again
later counts as made anew.

Snapshots of large heaps have samples of their blocks (findleaks/engine/sampling.py). Counts then
are estimates, with 95 % intervals: a block is in the sample with probability p, whatever its fate,
so of N blocks X ~ Bin(N, p) are seen. Wilson's score interval (E. B. Wilson, "Probable inference,
the law of succession, and statistical inference", Journal of the American Statistical Association
22, 1927) is solved for N, and for the part of the n sampled ones that stayed, there with the
correction 1 - p of a finite population. With p = 1 both are exact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Optional, Union

from findleaks.engine.sampling import probability
from findleaks.errors import TargetError
from findleaks.history.sample import Block, Sample, common_level
from findleaks.history.snapshot import Snapshot
from findleaks.history.trend import MIN_POINTS, Z_95

MAX_ROWS = 1 << 18
"""Blocks that are compared in all snapshots together; of more, smaller samples are."""


class Estimate(NamedTuple):
    """A number with its 95 % interval; both ends equal it where it is exact."""

    value: float
    low: float
    high: float


class Amount(NamedTuple):
    """Blocks, and their usable bytes."""

    blocks: Estimate
    bytes: Estimate


class Cohort(NamedTuple):
    """Blocks that came at one time: `made`, and of these those `stayed` that are in every later
    snapshot. `part`: stayed / made, 0 to 1; None where none was seen."""

    made: Amount
    stayed: Amount
    part: Optional[Estimate]


class Survivors(NamedTuple):
    """Blocks of one size, of all sizes if None. `first`: those of the first snapshot. `since`:
    those first seen between it and the last one; None with two snapshots. `newest`: those first
    seen in the last one, of which it is not known yet."""

    size: Optional[int]
    first: Cohort
    since: Optional[Cohort]
    newest: Amount


class Survival(NamedTuple):
    """`level`: of the samples that were compared, 0 if all blocks were. `sizes`: those of which
    most bytes were made since and stayed come first."""

    level: int
    total: Survivors
    sizes: Sequence[Survivors]

    def of(self, size: int) -> Optional[Survivors]:
        return next((one for one in self.sizes if one.size == size), None)


def survival(snapshots: Sequence[Snapshot], most: int = MAX_ROWS) -> Union[Survival, str]:
    """What stayed in two or more snapshots of one process, in the order of time; or in a sentence
    why that cannot be said."""
    why = incomparable(snapshots)
    samples = [one.sample for one in snapshots if one.sample is not None]
    if why or len(samples) < len(snapshots):
        return why or "a snapshot does not have its blocks"
    level = common_level(samples, most)
    try:
        return _counted(samples, level)
    except TargetError as error:
        return str(error)


def incomparable(snapshots: Sequence[Snapshot]) -> str:
    """Why addresses of these snapshots cannot be compared; "" if they can. Snapshots are of one
    process if they have the same pid, and the same start time or the same identity of the process
    image, which the kernel chooses at random for each exec."""
    identities = [one.identity for one in snapshots]
    pids = list(dict.fromkeys(one.pid for one in identities))
    if None in pids:
        return "of a moment it is not known which process it is of"
    if len(pids) > 1:
        return "the moments are of several processes: pid " + ", ".join(map(str, pids[:4]))
    started, images = {one.started for one in identities}, {one.image for one in identities}
    if len(started - {None}) > 1 or len(images - {""}) > 1:
        return f"not one process: pid {pids[0]} was given to another one, or runs another program since"
    if None in started and "" in images:
        return "it is not known whether the moments are of one process: there is neither its start time nor its auxiliary vector in all"
    if len({one.allocators for one in identities}) > 1:
        return "the allocators that were found differ"
    return ""


class _Seen(NamedTuple):
    """Sampled blocks counted by size."""

    first: Counter[int]
    first_stayed: Counter[int]
    since: Counter[int]
    since_stayed: Counter[int]
    newest: Counter[int]


def _counted(samples: Sequence[Sample], level: int) -> Survival:
    seen, last = _Seen(Counter(), Counter(), Counter(), Counter(), Counter()), len(samples) - 1
    before: set[Block] = set()
    born: dict[Block, int] = {}  # of each block of the snapshot before: the first one with it
    for at, sample in enumerate(samples):
        now = sample.blocks(level)
        for block in before - now:
            del born[block]
        new = now - before
        born.update(dict.fromkeys(new, at))
        (seen.first if not at else seen.newest if at == last else seen.since).update(size for _, size in new)
        before = now
    for (_, size), at in born.items():
        if at < last:
            (seen.since_stayed if at else seen.first_stayed)[size] += 1
    every = sorted(seen.first.keys() | seen.since.keys() | seen.newest.keys())
    judged = len(samples) >= MIN_POINTS
    sizes = [_survivors(seen, size, (size,), level, judged) for size in every]
    return Survival(level, _survivors(seen, None, every, level, judged), sorted(sizes, key=_rank))


def _rank(one: Survivors) -> tuple[float, float, int]:
    """Sizes of which most new bytes stayed first, then those of most bytes."""
    new = one.since.stayed.bytes.value if one.since else one.newest.bytes.value
    return -new, -one.first.made.bytes.value, one.size or 0


def _survivors(seen: _Seen, size: Optional[int], sizes: Sequence[int], level: int, judged: bool) -> Survivors:
    since = _cohort(seen.since, seen.since_stayed, sizes, level) if judged else None
    return Survivors(size, _cohort(seen.first, seen.first_stayed, sizes, level), since, _amount(seen.newest, sizes, level))


def _cohort(made: Counter[int], stayed: Counter[int], sizes: Sequence[int], level: int) -> Cohort:
    """Of blocks of these sizes."""
    before, after = _amount(made, sizes, level), _amount(stayed, sizes, level)
    part = None
    if before.blocks.value:
        value, weights = after.blocks.value / before.blocks.value, [(made[size], 1 / probability(size, level)) for size in sizes]
        # Blocks of unequal probability: as many equal ones as err as much (Kish's effective size).
        effective = sum(count * weight for count, weight in weights) ** 2 / sum(count * weight**2 for count, weight in weights)
        part = Estimate(value, *_part(value, effective, 1 / max(weight for _, weight in weights)))
    return Cohort(before, after, part)


def _amount(seen: Counter[int], sizes: Sequence[int], level: int) -> Amount:
    """An estimate of the number of blocks of these sizes, and of their bytes. Blocks of the same
    probability are one stratum; strata are independent, so their errors' squares are added."""
    strata: dict[float, list[int]] = {}
    for size in sizes:
        strata.setdefault(probability(size, level), []).append(size)
    blocks, wide = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
    for chance, alike in strata.items():
        count = sum(seen[size] for size in alike)
        low, high = whole(count, chance)
        held = sum(size * seen[size] for size in alike)
        # Sizes differ within a stratum: the spread of X bytes is that of their root mean square.
        weights = [(size, seen[size] if count else 1) for size in alike]
        weight = math.sqrt(sum(size * size * often for size, often in weights) / sum(often for _, often in weights))
        for sums, value, scale in ((blocks, count / chance, 1.0), (wide, held / chance, weight)):
            sums[0] += value
            sums[1] += ((count / chance - low) * scale) ** 2
            sums[2] += ((high - count / chance) * scale) ** 2
    return Amount(*(Estimate(value, value - math.sqrt(low), value + math.sqrt(high)) for value, low, high in (blocks, wide)))


def whole(seen: int, chance: float) -> tuple[float, float]:
    """The 95 % interval of the number of blocks of which `seen` are in a sample that each is in
    with this chance: the N at which (seen - N p)^2 = z^2 N p (1 - p)."""
    spread = Z_95 * Z_95 * (1 - chance)
    middle, width = seen + spread / 2, math.sqrt(spread * (seen + spread / 4))
    return (middle - width) / chance, (middle + width) / chance


def _part(value: float, seen: float, chance: float) -> tuple[float, float]:
    """Wilson's interval of a part of `seen` blocks."""
    spread = Z_95 * Z_95 * (1 - chance) / seen
    middle, width = value + spread / 2, math.sqrt(spread * (value * (1 - value) + spread / 4))
    low, high = (middle - width) / (1 + spread), (middle + width) / (1 + spread)
    return max(low, 0.0) if value > 0.0 else 0.0, min(high, 1.0) if value < 1.0 else 1.0
