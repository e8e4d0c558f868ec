"""Record only one block in N, at random, if a program allocates too often.

Recording a block takes up to two microseconds with cold caches. A program that allocates millions
of blocks per second would be slowed down, and would fill the table at once. Each record contains
its N, so sums over such records are estimates."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

FREE_RECORDS = 1 << 16  # this many records are made before thinning begins
RECORDS_A_SECOND = 3_000  # target rate of further records
LOOK_SECONDS = 0.02  # seconds between checks
LASTING_SECONDS = 60.0  # seconds for which the table must last if no duration is given


class Thinning:
    """Called often while a table of `capacity` records is being filled.
    `taken` returns the number of records. `thin` sets how many blocks a record represents (1: each
    block is recorded). `seconds`: duration of the recording; 0 if unknown."""

    def __init__(self, taken: Callable[[], int], capacity: int, thin: Callable[[int], None], seconds: float) -> None:
        self._taken, self._capacity, self._thin = taken, capacity, thin
        self._end = time.monotonic() + seconds if seconds else math.inf
        self._mean, self._before, self._looked = 1, 0, time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        taken = self._taken()
        mean = self.mean(self._mean, taken, (taken - self._before) / (now - self._looked), self._end - now)
        self._before, self._looked = taken, now
        if mean != self._mean:
            self._mean = mean
            self._thin(mean)

    def mean(self, mean: int, taken: int, rate: float, left: float) -> int:
        """Return the next mean. `rate`: records per second."""
        if taken < FREE_RECORDS or taken >= self._capacity:
            return mean
        lasting = max(1.0, LASTING_SECONDS if math.isinf(left) else left)
        limit = max(1.0, min(RECORDS_A_SECOND, (self._capacity - taken) / lasting))
        if rate > limit:
            return math.ceil(mean * rate / limit)
        return max(1, mean // 2) if rate < limit / 3 else mean
