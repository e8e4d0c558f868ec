"""Find survivors: blocks that exist in every later snapshot of one process, by size.

New blocks of a leak stay. New blocks of a cache, or of temporary data, are freed. Blocks with the
same address and usable size count as the same block. If a block is freed and allocated again at the
same address with the same size before the next snapshot, it therefore counts as a survivor. A block
that is missing from one snapshot and exists in a later one counts as a new block.

Snapshots of large heaps contain samples of their blocks (findleaks/engine/sampling.py). Counts are
then estimates with 95 % intervals. A block is in the sample with probability p, independently of
whether it is freed. Of N blocks, X ~ Bin(N, p) are therefore seen. Wilson's score interval (E. B.
Wilson, "Probable inference, the law of succession, and statistical inference", Journal of the
American Statistical Association 22, 1927) is solved for N. It is also used for the fraction of the
n sampled blocks that stayed, with the correction 1 - p for a finite population. With p = 1 both are
exact."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Optional, Union

from findleaks.engine.sampling import probability
from findleaks.errors import TargetError
from findleaks.history.sample import Block, BlockSample, common_level
from findleaks.history.snapshot import Snapshot
from findleaks.history.trend import MIN_POINTS, Z_95

MAX_ROWS = 1 << 18
"""Maximum number of blocks that are compared, in all snapshots together. If there are more, smaller
samples are compared."""


class Estimate(NamedTuple):
    """A number with its 95 % interval. If the number is exact, both ends equal it."""

    value: float
    low: float
    high: float


class Amount(NamedTuple):
    """A number of blocks, and their usable bytes."""

    blocks: Estimate
    bytes: Estimate


class Cohort(NamedTuple):
    """Blocks that were first seen at the same time. `made`: all of them. `stayed`: those that are
    in every later snapshot. `part`: stayed / made, from 0 to 1; None if no block was seen."""

    made: Amount
    stayed: Amount
    part: Optional[Estimate]


class Survivors(NamedTuple):
    """The survivors of one size, or of all sizes (None). `first`: blocks of the first snapshot.
    `since`: blocks first seen after the first and before the last snapshot; None if there are only
    two snapshots. `newest`: blocks first seen in the last snapshot, which may or may not stay."""

    size: Optional[int]
    first: Cohort
    since: Optional[Cohort]
    newest: Amount


class Survival(NamedTuple):
    """The survivors in all snapshots. `level`: the level of the compared samples, 0 if all blocks
    were compared. `sizes`: the order is by bytes of the blocks that were first seen after the first
    snapshot and stayed."""

    level: int
    total: Survivors
    sizes: Sequence[Survivors]

    def of(self, size: int) -> Optional[Survivors]:
        return next((one for one in self.sizes if one.size == size), None)


def survival(snapshots: Sequence[Snapshot], most: int = MAX_ROWS) -> Union[Survival, str]:
    """Return the survivors in two or more snapshots of one process, which are in the order of time.
    If they are unknown, return a sentence with the reason."""
    why = incomparable(snapshots)
    samples = [one.sample for one in snapshots if one.sample is not None]
    if why or len(samples) < len(snapshots):
        return why or "one of the snapshots has no sample of the blocks"
    level = common_level(samples, most)
    try:
        return _count_survivors(samples, level)
    except TargetError as error:
        return str(error)


def incomparable(snapshots: Sequence[Snapshot]) -> str:
    """Return why addresses in these snapshots cannot be compared; "" if they can. Snapshots are of
    one process if they have the same pid, and the same start time or process image. The kernel
    places the image at random for each exec."""
    identities = [one.identity for one in snapshots]
    pids = list(dict.fromkeys(one.pid for one in identities))
    if None in pids:
        return "one of the samples does not record its process"
    if len(pids) > 1:
        return "the samples are of several processes: pid " + ", ".join(map(str, pids[:4]))
    started, images = {one.started for one in identities}, {one.image for one in identities}
    if len(started - {None}) > 1 or len(images - {""}) > 1:
        return f"not one process: pid {pids[0]} was reused, or has run another program since"
    if None in started and "" in images:
        return "it is not known whether the samples are of one process: not all contain its start time or its auxiliary vector"
    if len({one.allocators for one in identities}) > 1:
        return "the samples have different allocators"
    return ""


class _Seen(NamedTuple):
    """Counts of sampled blocks by size."""

    first: Counter[int]
    first_stayed: Counter[int]
    since: Counter[int]
    since_stayed: Counter[int]
    newest: Counter[int]


def _count_survivors(samples: Sequence[BlockSample], level: int) -> Survival:
    seen, last = _Seen(Counter(), Counter(), Counter(), Counter(), Counter()), len(samples) - 1
    before: set[Block] = set()
    # For each block of the preceding snapshot: the first snapshot that contains it.
    born: dict[Block, int] = {}
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
    """Return the sort key of a size: bytes of new blocks that stayed, then bytes of all blocks."""
    new = one.since.stayed.bytes.value if one.since else one.newest.bytes.value
    return -new, -one.first.made.bytes.value, one.size or 0


def _survivors(seen: _Seen, size: Optional[int], sizes: Sequence[int], level: int, judged: bool) -> Survivors:
    since = _cohort(seen.since, seen.since_stayed, sizes, level) if judged else None
    return Survivors(size, _cohort(seen.first, seen.first_stayed, sizes, level), since, _amount(seen.newest, sizes, level))


def _cohort(made: Counter[int], stayed: Counter[int], sizes: Sequence[int], level: int) -> Cohort:
    """Return the cohort of blocks of these sizes."""
    before, after = _amount(made, sizes, level), _amount(stayed, sizes, level)
    part = None
    if before.blocks.value:
        value, weights = after.blocks.value / before.blocks.value, [(made[size], 1 / probability(size, level)) for size in sizes]
        # Blocks have unequal probabilities. This uses the number of blocks with equal probabilities
        # that gives the same error (Kish's effective sample size).
        effective = sum(count * weight for count, weight in weights) ** 2 / sum(count * weight**2 for count, weight in weights)
        part = Estimate(value, *_part(value, effective, 1 / max(weight for _, weight in weights)))
    return Cohort(before, after, part)


def _amount(seen: Counter[int], sizes: Sequence[int], level: int) -> Amount:
    """Estimate the number of blocks of these sizes, and their bytes. Blocks with the same
    probability form a stratum. Strata are independent, so the squares of their errors are added."""
    strata: dict[float, list[int]] = {}
    for size in sizes:
        strata.setdefault(probability(size, level), []).append(size)
    blocks, wide = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
    for chance, alike in strata.items():
        count = sum(seen[size] for size in alike)
        low, high = whole(count, chance)
        held = sum(size * seen[size] for size in alike)
        # Sizes differ within a stratum. The deviation of the bytes of X blocks is computed from the
        # root mean square of the sizes.
        weights = [(size, seen[size] if count else 1) for size in alike]
        weight = math.sqrt(sum(size * size * often for size, often in weights) / sum(often for _, often in weights))
        for sums, value, scale in ((blocks, count / chance, 1.0), (wide, held / chance, weight)):
            sums[0] += value
            sums[1] += ((count / chance - low) * scale) ** 2
            sums[2] += ((high - count / chance) * scale) ** 2
    return Amount(*(Estimate(value, value - math.sqrt(low), value + math.sqrt(high)) for value, low, high in (blocks, wide)))


def whole(seen: int, chance: float) -> tuple[float, float]:
    """Return the 95 % interval of the number of blocks if `seen` of them are in a sample. Each
    block is in the sample with probability `chance`. The ends are the N with (seen - N p)^2 = z^2 N
    p (1 - p)."""
    spread = Z_95 * Z_95 * (1 - chance)
    middle, width = seen + spread / 2, math.sqrt(spread * (seen + spread / 4))
    return (middle - width) / chance, (middle + width) / chance


def _part(value: float, seen: float, chance: float) -> tuple[float, float]:
    """Return Wilson's interval for a fraction of `seen` blocks."""
    spread = Z_95 * Z_95 * (1 - chance) / seen
    middle, width = value + spread / 2, math.sqrt(spread * (value * (1 - value) + spread / 4))
    low, high = (middle - width) / (1 + spread), (middle + width) / (1 + spread)
    return max(low, 0.0) if value > 0.0 else 0.0, min(high, 1.0) if value < 1.0 else 1.0
