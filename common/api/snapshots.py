"""Snapshots of processes."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from findleaks import __version__
from findleaks.answers.growth import leaked_amount
from findleaks.history import snapshot, store


class Snapshot:
    """The figures of a process at one time. `Process.snapshot` and `findleaks.load` return it."""

    def __init__(self, taken: snapshot.Snapshot) -> None:
        self._taken = taken

    def __repr__(self) -> str:
        return f"<Snapshot: {self.name}>"

    @property
    def name(self) -> str:
        """The name that was given to the snapshot, or the name of its file."""
        return self._taken.name

    @property
    def program(self) -> str:
        """The name of the program."""
        return self._taken.identity.program

    @property
    def pid(self) -> Optional[int]:
        """The process id; None if unknown."""
        return self._taken.identity.pid

    @property
    def time(self) -> Optional[float]:
        """The time of the snapshot in seconds since 1970; None if unknown."""
        return self._taken.clock.time

    @property
    def resident_bytes(self) -> Optional[int]:
        """Resident bytes; None if residency is unknown."""
        total = self._taken.total()
        return total.bytes if total.name == "resident" else None

    @property
    def leaked_blocks(self) -> int:
        """Number of definitely and indirectly lost blocks, without garbage that a collector will
        free."""
        return leaked_amount(self._taken)[0]

    @property
    def leaked_bytes(self) -> int:
        """Usable bytes of the blocks that `leaked_blocks` counts."""
        return leaked_amount(self._taken)[1]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about what limits the figures."""
        return self._taken.warnings

    def save(self, path: str) -> None:
        """Write the snapshot to a file, which `findleaks.load` and `findleaks diff` read.
        Raises TargetError if the file cannot be written."""
        store.save(self._taken, Path(path), __version__)


def snapshot_of(one: Snapshot) -> snapshot.Snapshot:
    """Return the snapshot in the form that history/ compares."""
    return one._taken
