"""Record blocks of all sizes at first, to show what a process allocates instead of blocks of the
wanted sizes.

The stubs ignore blocks of other sizes. Therefore all sizes are recorded at first, up to
PROBE_RECORDS blocks. In a process that allocates little, this lasts until the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Optional

# Maximum number of records of all sizes; more would fill the small filter for calls of free
PROBE_RECORDS = 250
LOOK_SECONDS = 0.02  # seconds between polls of the process's state


class Probe:
    """Called often while the process runs, until `end`.
    `taken` returns the number of records. `close` restricts recording to the wanted sizes (None:
    all sizes are wanted). `state` returns the state of the process as in /proc."""

    def __init__(self, taken: Callable[[], int], close: Optional[Callable[[], None]], state: Callable[[], str]) -> None:
        self._taken, self._close, self._state = taken, close, state
        self._ended = False
        self._began = self._looked = time.monotonic()
        self.seconds: Optional[float] = None  # seconds after which only wanted sizes were recorded
        self.looks = 0  # polls of the process's state
        self.stopped = 0  # polls that found it stopped by a signal

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
            self.looks += state != "t"  # "t" means that findleaks has stopped it
            self.stopped += state == "T"

    def end(self) -> None:
        """End the probe, because the process is about to be stopped."""
        self._ended = True

    @property
    def stopped_part(self) -> float:
        """Return the fraction of the time for which the process was stopped by a signal."""
        return self.stopped / self.looks if self.looks else 0.0
