"""Finds out what a process allocates where nothing of the wanted sizes shows up.

The stubs let blocks of unwanted sizes pass unseen. So all sizes are recorded at first, up to
PROBE_RECORDS blocks: in a process that allocates little, to the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Optional

PROBE_RECORDS = 250  # of all sizes; more would fill the small filter by which a free is passed on
LOOK_SECONDS = 0.02  # between looks at the process's state


class Probe:
    """Called often while the process runs, until `end`. `taken` returns the number of records,
    `close` leaves the wanted sizes only (None: all are wanted), `state` returns the process's state
    as /proc has it."""

    def __init__(self, taken: Callable[[], int], close: Optional[Callable[[], None]], state: Callable[[], str]) -> None:
        self._taken, self._close, self._state = taken, close, state
        self._ended = False
        self._began = self._looked = time.monotonic()
        self.seconds: Optional[float] = None  # until only wanted sizes were recorded
        self.looks = 0  # at the process's state
        self.stopped = 0  # looks that found it stopped by a signal

    def __call__(self) -> None:
        if self._ended:
            return
        now = time.monotonic()
        if self.seconds is None and self._close is not None and self._taken() >= PROBE_RECORDS:
            self._close()
            self.seconds = now - self._began
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            state = self._state()
            self.looks += state != "t"  # findleaks holds it
            self.stopped += state == "T"

    def end(self) -> None:
        """The process is about to be stopped."""
        self._ended = True

    @property
    def stopped_part(self) -> float:
        """For which part of the time the process was stopped by a signal."""
        return self.stopped / self.looks if self.looks else 0.0
