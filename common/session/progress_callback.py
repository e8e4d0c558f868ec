"""The interface of progress callbacks."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A progress callback. `phase`: what is done ("reading the heaps"); `part`: the part done, 0 to
    1 (0: unknown)."""

    def __call__(self, phase: str, part: float) -> None: ...

    def clear(self) -> None:
        """Remove the progress line, as the work is done and output follows."""
        ...
