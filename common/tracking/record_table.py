"""Layout of the memory in which the stubs of `track` record blocks: settings and records.

The layout extends the table of `count --inject` (stub/table.py). Entries of threads differ, and
these parts are added (offsets as in track.S):

- draws: 4-byte numbers, from which a thread draws the distance to its next sample
- records: address, stack, size, mean and state; in the order of allocation

These are private to the process, and zeroed in forked children:

- filter: by hash of an address, the number of live records with this hash, in two bytes each (a
  small copy beside the switches stays in the L1 cache)
- index: by hash of an address, the number of its record plus 1, in four bytes. Bit 31 is set if the
  record is live."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from findleaks.injection.stub.table import EVENTS, GOLDEN, PATIENCE, CountTable, private_pages, whole_pages
from findleaks.tracking.generated import track as trackcode

MEAN = 0x50  # offset of a setting that may change while the stubs work
# Offset of the smallest size that is recorded. The next word is the largest size minus the
# smallest.
LEAST = 0x1018
TAKEN = EVENTS  # number of records, including those for which there was no space
# States of a record. UNSEEN: the block was freed by a function without a stub. REPLACED: another
# record describes the same block, because realloc failed.
LIVE, FREED, UNSEEN, UNPLACED, REPLACED = 1, 2, 3, 4, 5
DRAWS, FILTERS = 1 << 12, 1 << 17  # as track.S hashes
DRAW_UNIT = 1 << 10
MOST_BYTES = 1 << 40  # most bytes of a recorded block: track.S multiplies by DRAW_UNIT
RECORD = struct.Struct("<QQQII")
_THREAD, _DRAW, _FILTER, _NODE, _INDEX = 64, 4, 2, 32, 4  # bytes of each entry


class Record(NamedTuple):
    """A recorded block. `stack`: node of the last frame of its stack. Bit 0 is set if the stack
    could not be followed to the end; 0 means that there was no space. `mean`: one block in `mean`
    was recorded; 0: every block."""

    address: int
    stack: int
    size: int
    mean: int
    state: int


class Sampling(NamedTuple):
    """Which blocks are recorded: requests of `least` to `most` bytes. Of these, one in `mean` bytes
    (`by_bytes`) or one in `mean` blocks is recorded; all if `mean` is at most 1."""

    least: int = 0
    most: int = MOST_BYTES
    mean: int = 0
    by_bytes: bool = False

    @property
    def selects(self) -> bool:
        """Whether some sizes are not recorded."""
        return self.least > 0 or self.most < MOST_BYTES

    def weight(self, record: Record) -> float:
        """Return the number of blocks that a record represents.
        A Poisson sample with a mean of m bytes contains a block of s bytes with probability 1 -
        exp(-s / m), so each record counts as the inverse of this probability. Example: with m = 512
        KiB and s = 1 KiB, a record counts as about 512 blocks."""
        if not record.mean:
            return 1.0
        amount = record.size | 1 if self.by_bytes else 1  # as in track.S
        return -1 / math.expm1(-amount / record.mean)


@dataclass(frozen=True)
class RecordTable(CountTable):
    """Layout of the table at `address`, with `records` records."""

    nodes: int = 1 << 19  # stacks of a program like Node share few of their frames
    records: int = 1 << 20

    @property
    def draws_at(self) -> int:
        return self.rules_at + 16 * self.rules

    @property
    def nodes_at(self) -> int:
        return self.draws_at + _DRAW * DRAWS

    @property
    def records_at(self) -> int:
        return self.nodes_at + _NODE * self.nodes

    @property
    def shared_end(self) -> int:
        return whole_pages(self.records_at + RECORD.size * self.records)

    @property
    def filter_at(self) -> int:
        return self.threads_at + _THREAD * self.threads

    @property
    def index_at(self) -> int:
        return self.filter_at + _FILTER * FILTERS

    @property
    def size(self) -> int:
        return whole_pages(self.index_at + _INDEX * 2 * self.records)

    def recording(self, sampling: Sampling, routines: int, chain: Sequence[int] = ()) -> bytes:
        """Return the bytes of the settings and switches, with recording disabled. `routines`: the
        address of the routines. `chain`: see `private_pages`."""
        base = self.address
        words = [0, 0, PATIENCE, GOLDEN, base + self.rules_at, self.rules - 1, base + self.nodes_at, self.nodes - 1]
        words += [base + self.threads_at, _THREAD * (self.threads - 1), sampling.mean, (1 << 64) - 1 if sampling.by_bytes else 0]
        words += [base + self.filter_at, base + self.index_at, 2 * self.records - 1, base + self.records_at, self.records]
        words += [base + self.draws_at]
        words += [routines + at for at in (trackcode.BEGIN, trackcode.RECORD, trackcode.FORGET, trackcode.REVIVE)]
        return private_pages(words, (sampling.least, sampling.most - sampling.least), chain)


def build_draws() -> bytes:
    """Return the bytes of the table of random draws for sampling by bytes.

    The exponential distribution is divided into DRAWS parts of equal probability. Each draw is the
    mean of one part. The mean of all draws is therefore exactly that of the distribution."""
    # This is the integral of -log(u), which turns a uniform u into an exponentially distributed
    # number.
    bounds = [0.0] + [u - u * math.log(u) for u in (number / DRAWS for number in range(1, DRAWS + 1))]
    parts = [DRAWS * (high - low) for low, high in zip(bounds, bounds[1:])]
    return struct.pack(f"<{DRAWS}I", *(round(DRAW_UNIT * part) for part in parts))


def read_table(data: bytes) -> Iterator[Record]:
    """Yield the records in these bytes, up to the first unused one."""
    for row in RECORD.iter_unpack(data[: len(data) - len(data) % RECORD.size]):
        yield Record(*row)
