"""Allocation sites: the stacks that a heap profiler, a debugging allocator or a runtime recorded as
blocks were allocated, and which block came from which.

Who records stacks offers a `Recording`; `Sites` numbers the sites of all of them."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import NamedTuple, Optional, TypeVar, Union

from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State, Totals
from findleaks.errors import Interrupted
from findleaks.target.base import Target

STEP = 1 << 14  # recorded blocks between two checks for Ctrl-C
Item = TypeVar("Item")


class SourceFrame(NamedTuple):
    """A frame that its recorder keeps as a line of source code; `line` 0: unknown."""

    file: str
    line: int
    function: str = ""


SiteFrame = Union[int, SourceFrame]
"""A return address, or a line of source code."""


@dataclass(frozen=True)
class Site:
    """An allocation stack, innermost frame first, and what its recorder counts for it.

    `live`: allocated there and not freed; `allocated`: since the start, freed ones too, None if not
    counted. Both as recorded: of a recorder that samples, the samples only. `estimated`: the live
    blocks that the samples represent; None where every allocation is recorded."""

    frames: tuple[SiteFrame, ...]
    live: Totals
    allocated: Optional[Totals] = None
    estimated: Optional[Totals] = None

    @property
    def weight(self) -> Totals:
        """The live blocks, estimated if they are sampled."""
        return self.estimated or self.live


@dataclass
class Recording:
    """What one recorder has. `recorder`: its name in a sentence ("jemalloc's heap profiler").

    The site of `addresses[i]`, the start of a block, is `sites[site_of[i]]`; addresses ascend.
    `weights[i]` blocks are represented by this one if it was sampled; empty: one each. `interval`:
    bytes from one sample to the next, on average; 1 where every allocation is recorded. `own`: the
    file whose innermost frames are the recorder's own ("": none). `warnings`: what was damaged and
    left out, with addresses. `freed`: the stacks are those that freed the blocks, which the
    recorder keeps for a while."""

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
        """The position in `addresses` of this block, or -1."""
        i = bisect_left(self.addresses, address)
        return i if i < len(self.addresses) and self.addresses[i] == address else -1

    @property
    def sampled(self) -> bool:
        return self.interval > 1


def polled(items: Iterable[Item], target: Target) -> Iterator[Item]:
    """The items, with a check for Ctrl-C every STEP of them. Raises Interrupted."""
    for count, item in enumerate(items):
        if count % STEP == 0 and target.interrupted():
            raise Interrupted
        yield item


def recording(
    target: Target,
    recorder: str,
    sites: Sequence[Site],
    blocks: Iterable[tuple[int, int, float]],
    interval: int = 1,
    own: str = "",
    warnings: Sequence[str] = (),
) -> Recording:
    """A recording of `blocks`: address, index of its site and weight, in any order. Of an address
    that occurs again, the first counts. Raises Interrupted."""
    found: dict[int, tuple[int, float]] = {}
    for address, site, weight in polled(blocks, target):
        found.setdefault(address, (site, weight))
    made = Recording(recorder, sites, interval=interval, own=own, warnings=warnings)
    for address in polled(sorted(found), target):
        site, weight = found[address]
        made.addresses.append(address)
        made.site_of.append(site)
        if interval > 1:
            made.weights.append(weight)
    return made


def in_use(target: Target, blocks: Blocks, found: Iterable[tuple[int, int, float]]) -> Iterator[tuple[int, int, float]]:
    """Those of `found`, tuples that begin with an address, at which a block in use starts. Raises
    Interrupted."""
    left, end = iter(found), len(blocks)
    while batch := list(islice(left, STEP)):
        if target.interrupted():
            raise Interrupted
        indices, _ = blocks.find_all(array("Q", [one[0] for one in batch]))
        for one, i in zip(batch, indices):
            if i < end and blocks.address(i) == one[0] and blocks.state(i) == State.IN_USE:
                yield one


def own_file(where: str, allocator: str) -> str:
    """`where` if it is a library of the allocator's own, by its name; "" for a program or another
    library with the allocator inside, whose innermost frames need not be the allocator's."""
    return where if allocator in where and ".so" in where else ""


def represented(size: float, interval: int) -> float:
    """Blocks of `size` bytes that one represents which was sampled by a Poisson process of bytes,
    once in `interval` bytes."""
    return 1.0 if interval == 1 or size <= 0 else -1.0 / math.expm1(-size / interval)


class NumberedSite(NamedTuple):
    """A site with its number, from 1, and its recording."""

    number: int
    site: Site
    recording: Recording


class Sites:
    """The sites of all recordings, numbered from 1: most live bytes first. Of a block with several
    the first recording counts."""

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
        """The site of this number. Raises KeyError."""
        if not 1 <= number <= len(self._every):
            raise KeyError(number)
        which, i = self._every[number - 1]
        return NumberedSite(number, self.recordings[which].sites[i], self.recordings[which])

    def of(self, address: int) -> int:
        """The number of the site of the block that starts at this address; 0 if unknown."""
        return self.weighted(address)[0]

    def weighted(self, address: int) -> tuple[int, float]:
        """`of`, and how many blocks this one represents."""
        for one, numbers in zip(self.recordings, self._numbers):
            i = one.at(address)
            if i >= 0:
                return numbers[one.site_of[i]], one.weights[i] if one.weights else 1.0
        return 0, 0.0

    def all_of(self, address: int) -> list[NumberedSite]:
        """The sites of the block that starts at this address, one a recording that has it."""
        found = []
        for one, numbers in zip(self.recordings, self._numbers):
            i = one.at(address)
            if i >= 0:
                found.append(self[numbers[one.site_of[i]]])
        return found

    def blocks(self, number: int) -> array[int]:
        """Addresses of the blocks recorded at this site, ascending. Raises KeyError."""
        which, i = self._every[self[number].number - 1]
        one = self.recordings[which]
        return array("Q", [address for address, site in zip(one.addresses, one.site_of) if site == i])

    def batches(self) -> Iterator[tuple[float, array[int], int, Recording]]:
        """STEP recorded blocks at a time: the part that was before, numbers of the recording's
        sites, index of the first block, the recording."""
        total, done = sum(len(one.addresses) for one in self.recordings) or 1, 0
        for one, numbers in zip(self.recordings, self._numbers):
            for first in range(0, len(one.addresses), STEP):
                yield (done + first) / total, numbers, first, one
            done += len(one.addresses)

    @cached_property
    def warnings(self) -> list[str]:
        """What was damaged, with addresses, a sentence each."""
        return [warning for one in self.recordings for warning in one.warnings]
