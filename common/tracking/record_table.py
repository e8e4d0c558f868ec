"""The memory in which the stubs of `track` record blocks: its layout, settings and records.

As the table of `count --inject` (stub/table.py), with other entries of threads, and further
(offsets as in track.S):

draws: numbers of four bytes, by which a thread chooses how far its next sample is
filter: by the hash of an address, how many live records have it, in two bytes each (as in a small
  one that is among the switches, and stays in the processor's first cache)
index: by the hash of an address, the number of its record, plus 1, in four bytes
records: address, stack, size, mean and state; in the order in which the blocks were allocated"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from findleaks.injection.stub.table import EVENTS, GOLDEN, PATIENCE, Layout, private_pages
from findleaks.tracking.generated import track as trackcode

MEAN = 0x50  # offset of a setting that may change while the stubs work
LEAST = 0x1018  # offset of the least size that is recorded, and, behind it, of how many more bytes
TAKEN = EVENTS  # records made, and those for which there was no space
LIVE, FREED, UNSEEN, UNPLACED = 1, 2, 3, 4  # states; UNSEEN: freed, but by no function with a stub
DRAWS, FILTERS = 1 << 12, 1 << 17  # as track.S hashes
DRAW_UNIT = 1 << 10
MOST_BYTES = 1 << 40  # of a block that is recorded: track.S multiplies by DRAW_UNIT
RECORD = struct.Struct("<QQQII")
_THREAD, _DRAW, _FILTER, _NODE, _INDEX = 64, 4, 2, 32, 4  # bytes of an entry


class Record(NamedTuple):
    """A block. `stack`: its last frame's node, with bit 0 if it was not followed to the end; 0:
    there was no space for it. `mean`: one in so many was recorded; 0: every one."""

    address: int
    stack: int
    size: int
    mean: int
    state: int


class Sampling(NamedTuple):
    """Which blocks are recorded: of at least `least` bytes and at most `most`, as asked for; one
    in `mean` bytes (`by_bytes`), or in `mean` blocks; up to 1: all."""

    least: int = 0
    most: int = MOST_BYTES
    mean: int = 0
    by_bytes: bool = False

    @property
    def selects(self) -> bool:
        """Whether some sizes are not wanted."""
        return self.least > 0 or self.most < MOST_BYTES

    def weight(self, record: Record) -> float:
        """How many blocks a record represents. A block of s bytes is in a Poisson sample of mean m
        with the probability 1 - exp(-s / m)."""
        if not record.mean:
            return 1.0
        amount = record.size | 1 if self.by_bytes else 1  # as in track.S
        return -1 / math.expm1(-amount / record.mean)


@dataclass(frozen=True)
class RecordTable(Layout):
    """The table at `address`, for so many `records`."""

    nodes: int = 1 << 19  # stacks of a program like Node share few of their frames
    records: int = 1 << 20

    @property
    def draws_at(self) -> int:
        return self.threads_at + _THREAD * self.threads

    @property
    def filter_at(self) -> int:
        return self.draws_at + _DRAW * DRAWS

    @property
    def nodes_at(self) -> int:
        return self.filter_at + _FILTER * FILTERS

    @property
    def index_at(self) -> int:
        return self.nodes_at + _NODE * self.nodes

    @property
    def records_at(self) -> int:
        return self.index_at + _INDEX * 2 * self.records

    @property
    def size(self) -> int:
        """Bytes, in whole pages."""
        return self.records_at + RECORD.size * self.records + 4095 & -4096

    def recording(self, sampling: Sampling, routines: int) -> bytes:
        """Settings and switches, with recording not enabled yet; `routines` is their address."""
        base = self.address
        words = [0, 0, PATIENCE, GOLDEN, base + self.rules_at, self.rules - 1, base + self.nodes_at, self.nodes - 1]
        words += [base + self.threads_at, _THREAD * (self.threads - 1), sampling.mean, (1 << 64) - 1 if sampling.by_bytes else 0]
        words += [base + self.filter_at, base + self.index_at, 2 * self.records - 1, base + self.records_at, self.records]
        words += [base + self.draws_at]
        words += [routines + at for at in (trackcode.BEGIN, trackcode.RECORD, trackcode.FORGET, trackcode.REVIVE)]
        return private_pages(words, (sampling.least, sampling.most - sampling.least))


def draws() -> bytes:
    """The table of draws: each the mean of one of DRAWS parts, of equal probability, of the
    exponential distribution. The mean of all is that of the distribution, exactly."""
    # The integral of -log(u), which turns a uniform u into an exponentially distributed number.
    bounds = [0.0] + [u - u * math.log(u) for u in (number / DRAWS for number in range(1, DRAWS + 1))]
    parts = [DRAWS * (high - low) for low, high in zip(bounds, bounds[1:])]
    return struct.pack(f"<{DRAWS}I", *(round(DRAW_UNIT * part) for part in parts))


def records(data: bytes) -> Iterator[Record]:
    """The records in these bytes, up to the first that was never begun."""
    for row in RECORD.iter_unpack(data[: len(data) - len(data) % RECORD.size]):
        yield Record(*row)
