"""A progress line on a terminal, for work that takes longer than a second."""

from __future__ import annotations

import time
from typing import TextIO

from findleaks.escaping import visible

PATIENCE = 1.0  # seconds of work before the line is shown
EVERY = 0.1  # seconds between two updates of the line


class Bar:
    """A line of a terminal. Each call with (phase, fraction done) rewrites it. `clear` removes
    it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._began = self._last = time.monotonic()
        self._shown = False

    def __call__(self, phase: str, part: float) -> None:
        if not self._terminal:
            return
        now = time.monotonic()
        if now - self._began < PATIENCE or now - self._last < EVERY:
            return
        self._last = now
        self._shown = True
        # 100 % is not shown while the work continues.
        percent = f" {min(int(100 * part), 99):3}%" if part else ""
        self._stream.write(f"\r\x1b[Kfindleaks: {visible(phase)}{percent} ({now - self._began:.0f} s)")
        self._stream.flush()

    def off(self) -> None:
        """Stop showing progress."""
        self._terminal = False

    def clear(self) -> None:
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False
