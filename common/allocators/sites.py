"""Allocation sites: call stacks that a heap profiler, a debugging allocator or a runtime recorded.

A recorder returns a `Recording`: its sites, and the site of each recorded block. `Sites` numbers
the sites of all recordings."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Optional, TypeVar, Union

from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State, Totals
from findleaks.errors import Interrupted
from findleaks.target.base import Target
from findleaks.value_classes import NamedTuple, dataclass, field

STEP = 1 << 14  # recorded blocks between two checks for Ctrl-C
Item = TypeVar("Item")


class SourceFrame(NamedTuple):
    """A frame for which the recorder stored a line of source code instead of an address. `line` is
    0 if it is unknown."""

    file: str
    line: int
    function: str = ""


SiteFrame = Union[int, SourceFrame]
"""A return address, or a line of source code."""


@dataclass(frozen=True)
class Site:
    """An allocation stack, innermost frame first, with the recorder's counts.

    `live` counts blocks allocated there and not freed. `allocated` counts all blocks since the
    start, freed ones too, or is None if the recorder does not count them. A recorder that samples
    counts samples only; then `estimated` counts the live blocks that the samples represent.
    `estimated` is None if every allocation is recorded."""

    frames: tuple[SiteFrame, ...]
    live: Totals
    allocated: Optional[Totals] = None
    estimated: Optional[Totals] = None

    @property
    def weight(self) -> Totals:
        """The live blocks and bytes; an estimate if the recorder samples."""
        return self.estimated or self.live


@dataclass
class Recording:
    """The sites and blocks of one recorder.

    - recorder: its name in a sentence ("jemalloc's heap profiler")
    - addresses, site_of: block addresses, ascending, and for each the index of its site in `sites`
    - weights: for each block, the number of blocks that it represents; empty if no block is sampled
    - interval: bytes between two samples, on average; 1 if every allocation is recorded
    - own: the file whose innermost frames belong to the recorder; "" if there is none
    - warnings: damaged records that were left out, with addresses
    - freed: true if the stacks are those of the calls that freed the blocks"""

    recorder: str
    sites: Sequence[Site]
    addresses: array[int] = field(default_factory=lambda: array("Q"))
    site_of: array[int] = field(default_factory=lambda: array("I"))
    weights: array[float] = field(default_factory=lambda: array("d"))
    interval: int = 1
    own: str = ""
    warnings: Sequence[str] = ()
    freed: bool = False

    def at(self, address: int) -> int:
        """Return the index of the block at `address` in `addresses`, or -1."""
        i = bisect_left(self.addresses, address)
        return i if i < len(self.addresses) and self.addresses[i] == address else -1

    @property
    def sampled(self) -> bool:
        return self.interval > 1


def poll_items(items: Iterable[Item], target: Target) -> Iterator[Item]:
    """Yield the items, and check for Ctrl-C every STEP of them. Raises Interrupted."""
    for count, item in enumerate(items):
        if count % STEP == 0 and target.is_interrupted():
            raise Interrupted
        yield item


def make_recording(
    target: Target,
    recorder: str,
    sites: Sequence[Site],
    blocks: Iterable[tuple[int, int, float]],
    interval: int = 1,
    own: str = "",
    warnings: Sequence[str] = (),
) -> Recording:
    """Make a recording of `blocks`, tuples of address, index of the site, and weight, in any order.

    If an address occurs twice, its first tuple counts. Raises Interrupted."""
    found: dict[int, tuple[int, float]] = {}
    for address, site, weight in poll_items(blocks, target):
        found.setdefault(address, (site, weight))
    made = Recording(recorder, sites, interval=interval, own=own, warnings=warnings)
    for address in poll_items(sorted(found), target):
        site, weight = found[address]
        made.addresses.append(address)
        made.site_of.append(site)
        if interval > 1:
            made.weights.append(weight)
    return made


def select_in_use(target: Target, blocks: Blocks, found: Iterable[tuple[int, int, float]]) -> Iterator[tuple[int, int, float]]:
    """Yield the tuples of `found` whose first element is the address at which a block in use
    starts. Raises Interrupted."""
    left, end = iter(found), len(blocks)
    while batch := list(islice(left, STEP)):
        if target.is_interrupted():
            raise Interrupted
        indices, _ = blocks.find_all(array("Q", [one[0] for one in batch]))
        for one, i in zip(batch, indices):
            if i < end and blocks.address(i) == one[0] and blocks.state(i) == State.IN_USE:
                yield one


def own_library(where: str, allocator: str) -> str:
    """Return `where` if its name shows that it is a library of this allocator, otherwise "".

    Only if it is one, the innermost frames in it belong to the allocator. A program or another
    library may contain both the allocator and other code."""
    return where if allocator in where and ".so" in where else ""


def estimate_represented(size: float, interval: int) -> float:
    """Estimate how many blocks of `size` bytes one sampled block represents.

    The sampler takes bytes by a Poisson process, one in `interval` bytes, so it finds a block of
    `size` bytes with probability 1 - exp(-size / interval). Example: with an interval of 512 KiB,
    one sampled block of 1 KiB represents about 512 blocks."""
    return 1.0 if interval == 1 or size <= 0 else -1.0 / math.expm1(-size / interval)


class NumberedSite(NamedTuple):
    """A site with its number (1 or higher) and its recording."""

    number: int
    site: Site
    recording: Recording


class Sites:
    """The sites of all recordings. Site 1 has the most live bytes. If several recordings have a
    block, the first one counts."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self.recordings = recordings
        every = [(which, i) for which, one in enumerate(recordings) for i in range(len(one.sites))]
        every.sort(key=lambda key: (-recordings[key[0]].sites[key[1]].weight.bytes, -recordings[key[0]].sites[key[1]].weight.blocks))
        self._every = every
        self._numbers = [array("I", bytes(4 * len(one.sites))) for one in recordings]
        for number, (which, i) in enumerate(every, 1):
            self._numbers[which][i] = number

    def __len__(self) -> int:
        return len(self._every)

    def __iter__(self) -> Iterator[NumberedSite]:
        return (self[number] for number in range(1, len(self) + 1))

    def __getitem__(self, number: int) -> NumberedSite:
        """Return the site with this number. Raises KeyError."""
        if not 1 <= number <= len(self._every):
            raise KeyError(number)
        which, i = self._every[number - 1]
        return NumberedSite(number, self.recordings[which].sites[i], self.recordings[which])

    def of(self, address: int) -> int:
        """Return the number of the site of the block that starts at `address`, or 0 if it is
        unknown."""
        return self.site_and_weight(address)[0]

    def site_and_weight(self, address: int) -> tuple[int, float]:
        """Return the number of the block's site, as `of` does, and the number of blocks that this
        block represents."""
        for one, numbers in zip(self.recordings, self._numbers):
            i = one.at(address)
            if i >= 0:
                return numbers[one.site_of[i]], one.weights[i] if one.weights else 1.0
        return 0, 0.0

    def list_all(self, address: int) -> list[NumberedSite]:
        """Return the sites of the block that starts at `address`, one for each recording that has
        it."""
        found = []
        for one, numbers in zip(self.recordings, self._numbers):
            i = one.at(address)
            if i >= 0:
                found.append(self[numbers[one.site_of[i]]])
        return found

    def blocks(self, number: int) -> array[int]:
        """Return the addresses ("Q", ascending) of the blocks recorded at this site. Raises
        KeyError."""
        which, i = self._every[self[number].number - 1]
        one = self.recordings[which]
        return array("Q", [address for address, site in zip(one.addresses, one.site_of) if site == i])

    def batches(self) -> Iterator[tuple[float, array[int], int, Recording]]:
        """Yield recorded blocks in batches of STEP: the part already done (0 to 1), the site
        numbers of the recording, the index of the first block, and the recording."""
        total, done = sum(len(one.addresses) for one in self.recordings) or 1, 0
        for one, numbers in zip(self.recordings, self._numbers):
            for first in range(0, len(one.addresses), STEP):
                yield (done + first) / total, numbers, first, one
            done += len(one.addresses)

    @cached_property
    def warnings(self) -> list[str]:
        """Damaged records of all recordings, with addresses, a sentence each."""
        return [warning for one in self.recordings for warning in one.warnings]
