"""The snapshots of a process that `watch` stores: at most MOST, evenly spread."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from findleaks.history.snapshot import Snapshot

MOST = 128
"""Maximum number of snapshots that are stored."""


def only(one: Snapshot, sections: Collection[str]) -> Snapshot:
    """Return the snapshot with only the figures of these sections, and without the results of
    commands."""
    return replace(one, figures=[figure for figure in one.figures if figure.section in sections], answers={})


class Thinned:
    """Snapshots that are stored: the first, the last, and evenly spread ones between them.

    Every n-th snapshot is stored. If there are more than MOST, n is doubled, and the others are
    dropped. Example: after n has become 2, the snapshots 0, 2, 4, … and the last one remain."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self._added = 0
        self._step = 1

    def add(self, one: Snapshot) -> None:
        """Add the newest snapshot. The preceding one is dropped, unless it is one of the n-th
        snapshots."""
        if self._added and (self._added - 1) % self._step:
            self.snapshots.pop()
        self.snapshots.append(one)
        self._added += 1
        if len(self.snapshots) > MOST:
            # The last snapshot is stored in any case.
            last = self.snapshots[-1]
            self._step *= 2
            self.snapshots = self.snapshots[::2]
            if self.snapshots[-1] is not last:
                self.snapshots.append(last)
